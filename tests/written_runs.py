"""The files of a run, written by hand: what tests of the reading side steer by."""

import json

import torch
from torch import nn

from trainer_nb import Trainer
from trainer_nb.folder.control import OFFER, STATUS, ControlFolder, this_process
from trainer_nb.core.commands import COMMANDS, offered
from trainer_nb.hooks.remote_control import offer_of, status_of

def trained(folder, steps=24, **settings):
    """A run of some steps that has its files in the folder."""
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    trainer = Trainer(nn.Linear(3, 1), train_dl=torch.utils.data.DataLoader(data, batch_size=8),
                      loss_fn=nn.MSELoss(),
                      max_steps=steps, device="cpu", progress=False, workspace=folder, seed=0,
                      **settings)
    trainer.fit()
    return trainer


class WrittenRun:
    """Files of a run in `folder/exp1`, as the run writes them;
    `status` and `offer` can be changed and written again."""

    def __init__(self, folder, **settings):
        self.path = folder / "exp1"
        trainer = trained(self.path, **settings)
        self.control = ControlFolder(self.path)
        self.history, self.journal = trainer.history, trainer.journal
        self.status = json.loads(json.dumps(status_of(trainer.view) | {
            "protocol": 1, "state": "running", "alive": True, "attempt": "a",
            "process": this_process(), "beat": 1, "time": 0.0,
            "breakpoints": ["loss > 3"], "can_rewind": True, "rewind_points": [20, 10],
            "last_saved": [20, 1.5], "best": {},
            "command": ["python", "train.py", "--lr", "0.1"], "folder": "/work",
            "totals": {"epochs": None, "max_steps": 24}}))
        self.offer = {"protocol": 1} | json.loads(json.dumps(offer_of(trainer.view)))
        self.offer["commands"] |= {name: offered(spec, trainer.view)
                                   for name, spec in COMMANDS.items() if spec.remote}
        self.offer["step_times"] = {"steps": 4,
                                    "seconds": {"data": 0.1, "forward": 0.2, "hooks": 0.1},
                                    "since": "since step 4"}
        trainer.close()
        self.write()

    def write(self, **changes):
        """Status and offer, with changes of the status and a new beat."""
        self.status.update(changes)
        self.status["beat"] += 1
        self.control.write(STATUS, self.status)
        self.control.write(OFFER, self.offer)

    def commands(self):
        """What was left in the folder, the oldest first; not what is still being written."""
        found = sorted((self.control.path / "commands").glob("[!.]*"),
                       key=lambda path: path.stat().st_ctime_ns)
        return [json.loads(path.read_text()) for path in found]
