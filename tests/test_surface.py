"""The names of a trainer: those that completion offers, and those of the contract that work beside them."""

import torch
from torch import nn

from trainer_nb import Trainer
from trainer_nb.trainer import PUBLIC

# Names that work without being offered.
CONTRACT = """train_dl valid_dl device is_main workspace config get_hook describe_hooks plots controls hook_table note post
from_task from_config do_backward do_opt_step do_zero_grad after_pred failed_batch failed_indices best best_weights
epochs max_steps eval_every lr lr_scale grad_clip gradient_accumulation_steps mixed_precision metrics loss_fn train_step
eval_step seed ask record elapsed rates rate plain_model window_gradients gradients_allowed commands last_saved
rewind_points trial screen view still breakpoints lr_search rate_plan log_pr_curve position result watch_hooks""".split()


def make(cls=Trainer):
    model = nn.Linear(3, 1)
    batches = [(torch.ones(4, 3), torch.ones(4, 1))] * 4
    return cls(model, train_dl=batches, loss_fn=nn.MSELoss(), epochs=1, device="cpu", progress=False)


def test_completion_offers_45_names():
    assert sorted(PUBLIC) == dir(make()) and len(set(PUBLIC)) == 45


def test_each_name_is_there():
    trainer = make()
    missing = [name for name in (*PUBLIC, *CONTRACT) if name != "dashboard" and not hasattr(trainer, name)]
    assert missing == []


def test_each_offered_method_says_what_it_does():
    silent = [
        name for name in PUBLIC
        if callable(value := getattr(Trainer, name, None)) and not (value.__doc__ or "").strip()
    ]
    assert silent == []


def test_a_subclass_offers_its_own_names():
    class Mine(Trainer):
        def warm_up(self):
            """Mine."""

    assert "warm_up" in dir(make(Mine))
