"""The names of a trainer: those that completion offers, and those of the contract that work beside
them."""

import inspect
import re
import textwrap
from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn

from trainer_nb import Trainer
from trainer_nb.core.core_trainer import OF_PARTS
from trainer_nb.trainer import PUBLIC

PAGE = Path(__file__).resolve().parents[2] / "nbs" / "41_api.ipynb"
NAMES = PAGE.parent / "reference" / "10_names.ipynb"

# Attributes that only an instance has: help() shows the first line of their class.
OF_AN_INSTANCE = ("tunables", "history", "step_state")

# Names that work without being offered.
CONTRACT = """train_dl valid_dl device is_main workspace config get_hook describe_hooks plots
    controls hook_table layers_pane data_pane note post from_task from_config do_backward
    do_opt_step do_zero_grad after_pred failed_batch failed_indices best best_weights epochs
    max_steps eval_every lr lr_scale grad_clip gradient_accumulation_steps mixed_precision
    metrics loss_fn train_step eval_step seed ask record elapsed rates rate plain_model
    window_gradients gradients_allowed commands last_saved rewind_points trial screen view still
    breakpoints lr_search rate_plan log_pr_curve position result watch_hooks serve""".split()


def make(cls=Trainer, **settings):
    model = nn.Linear(3, 1)
    batches = [(torch.ones(4, 3), torch.ones(4, 1))] * 4
    return cls(model, train_dl=batches, loss_fn=nn.MSELoss(), epochs=1, device="cpu",
               progress=False, **settings)


def test_completion_offers_45_names():
    assert sorted(PUBLIC) == dir(make()) and len(set(PUBLIC)) == 45


def test_each_name_is_there():
    trainer = make()
    missing = [name for name in (*PUBLIC, *CONTRACT)
               if name != "dashboard" and not hasattr(trainer, name)]
    assert missing == []


def first_line(name):
    """What help() says first of a name."""
    owner = (getattr(make(), name)
             if name in OF_AN_INSTANCE else inspect.getattr_static(Trainer, name))
    return (getattr(type(owner) if name in OF_AN_INSTANCE else owner, "__doc__", None)
            or "").split("\n")[0]


def test_the_trainer_says_what_it_does_in_one_line():
    assert re.match(r"[A-Z].*[.:]$", Trainer.__doc__.split("\n")[0])


def test_only_attributes_of_an_instance_are_documented_by_their_class():
    assert [name for name in OF_AN_INSTANCE if hasattr(Trainer, name)] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_a_name_says_what_it_does_in_its_first_line(name):
    line = first_line(name)
    assert re.match(r"\S.*[.:]$", line), line
    # of the attribute itself, not of what implements it
    assert "attrgetter" not in line and not re.fullmatch(r"`[\w.]+` of the trainer\.", line)
    assert line != type(inspect.getattr_static(Trainer, name, None)).__doc__


def test_no_name_of_the_reference_is_only_said_to_be_of_a_part():
    """Its row says what it means, not only where it is."""
    cells = nbformat.read(NAMES, as_version=4).cells
    shown = "\n".join(output["data"].get("text/markdown", "") for cell in cells
                      for output in cell.get("outputs", []) if "data" in output)
    assert len(re.findall(r"^\| `", shown, re.MULTILINE)) > 150
    assert re.findall(r"^\| .* \| `[\w.]+` of the trainer\. \|$", shown, re.MULTILINE) == []


def page_texts():
    """The code cells and the prose of the page."""
    cells = nbformat.read(PAGE, as_version=4).cells
    sources = {kind: [cell.source for cell in cells if cell.cell_type == kind]
               for kind in ("code", "markdown")}
    return sources["code"], sources["markdown"]


def gaps(code, prose):
    """What the page lacks: of each name of PUBLIC its heading, and a cell that uses it just
    below."""
    shown = {name for cell in code for name in re.findall(r"^show_doc\(Trainer\.(\w+)", cell)}
    headed = {name for cell in prose for name in re.findall(r"^### (.+)", cell)}
    headed = {name for head in headed for name in re.findall(r"Trainer\.(\w+)", head)}
    examples = "\n".join(cell for cell in code if not cell.startswith("show_doc"))
    used = set(re.findall(r"\.(\w+)", examples))
    methods = {name for name in PUBLIC
               if inspect.isroutine(inspect.getattr_static(Trainer, name, None))}
    return sorted((methods - shown) | (set(PUBLIC) - methods - headed) | (set(PUBLIC) - used))


def test_the_page_has_each_name_and_an_example():
    assert gaps(*page_texts()) == []


@pytest.mark.parametrize("name", ["rewind", "sched", "journal"])
def test_a_planted_gap_is_found(name):
    code, prose = page_texts()
    code = [cell for cell in code if not re.search(rf"Trainer\.{name}\b", cell)]
    prose = [re.sub(rf"Trainer\.{name}\b", "", cell) for cell in prose]
    assert gaps(code, prose) == [name]


def test_the_page_names_the_rest_of_the_contract():
    code, prose = page_texts()
    text = "\n".join(code + prose)
    assert [name for name in CONTRACT if not re.search(rf"\b{name}\b", text)] == []


def test_a_subclass_offers_its_own_names():
    class Mine(Trainer):
        def warm_up(self):
            """Mine."""

    assert "warm_up" in dir(make(Mine))


# Attributes of parts


def properties():
    """The public properties of a trainer that read a part, with their docstrings."""
    found = {name: inspect.getattr_static(Trainer, name)
             for cls in Trainer.__mro__ for name in vars(cls) if not name.startswith("_")}
    return {name: value.__doc__ or "" for name, value in found.items()
            if isinstance(value, property)}


def test_no_property_is_only_said_to_be_of_a_part():
    """Nor is one without a docstring."""
    assert [name for name, text in properties().items()
            if not text.strip() or re.fullmatch(r"`[\w.]+` of the trainer\.", text)] == []


def test_the_examples_of_parts_run():
    """A sentence, what else is known, and two lines; each before the run and after it."""
    assert len(OF_PARTS) == 23
    found = properties()
    for name in OF_PARTS:
        head, *_, one, two = found[name].splitlines()
        assert head.endswith(".") and "An example:" in found[name], name
        assert name in one + two and one.startswith("    ") and two.startswith("    "), name
        trainer = make(valid_dl=[(torch.ones(4, 3), torch.ones(4, 1))])
        for _ in range(2):
            exec(textwrap.dedent(f"{one}\n{two}"), {"trainer": trainer})
            trainer.fit()
