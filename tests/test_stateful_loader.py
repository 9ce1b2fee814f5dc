"""torchdata's StatefulDataLoader: a run over one is taken up by the loader's own state, without loading what was seen."""

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from trainer_nb import Trainer


class Samples(torch.utils.data.Dataset):
    """Counts what is loaded; draws a little from the run's stream where no worker is asked."""

    def __init__(self, noisy):
        self.noisy, self.loaded = noisy, 0

    def __len__(self):
        return 26

    def __getitem__(self, index):
        self.loaded += 1
        x = torch.full((2,), float(index)) / 26
        return (x + 0.1 * torch.rand(2) if self.noisy else x), x.sum(0, keepdim=True)


def make(workers, first=0):
    """Three epochs of seven batches, the last one ragged."""
    torch.manual_seed(first)
    model = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 1))
    data = StatefulDataLoader(Samples(noisy=not workers), batch_size=4, shuffle=True, num_workers=workers)
    return Trainer(model, train_dl=data, loss_fn=torch.nn.MSELoss(), optim=torch.optim.AdamW(model.parameters(), lr=0.01),
                   seed=3, device="cpu", progress=False, epochs=3)


@pytest.mark.parametrize(("workers", "steps"), [(0, range(22)), (2, (0, 3, 7, 10, 20))])
def test_taken_up_after_any_step(workers, steps):
    straight = make(workers)
    straight.fit()
    for step in steps:
        first = make(workers)
        if step:
            first.step(step)
        state = first.state_dict()
        first.close()
        second = make(workers, first=99)
        second.load_state_dict(state)
        second.step(1)
        if not workers and step:
            assert second.train_dl.dataset.loaded <= 4  # the batch in hand, and none before it
        second.fit()
        same = [torch.equal(a, b) for a, b in zip(straight.model.parameters(), second.model.parameters())]
        assert all(same), step
        second.close()
    straight.close()


def test_stopped_and_going_on_in_one_process():
    straight, other = make(0), make(0)
    straight.fit()
    other.step(10)
    other.stop()
    other.fit()
    assert all(torch.equal(a, b) for a, b in zip(straight.model.parameters(), other.model.parameters()))
