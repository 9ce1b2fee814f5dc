"""From fit() to its first step, on the digits, in a notebook:
without a panel, and with it for the first time and again.

    python -m benchmarks.start
"""

import nbformat
from nbclient import NotebookClient

CELL = """
import time, torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from trainer_nb import Hook, Trainer
pixels, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))

class First(Hook):
    at = None
    def before_batch(self, trainer):
        self.at = self.at or time.perf_counter()

def seconds(**settings):
    torch.manual_seed(0)
    model, first = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(),
                                       torch.nn.Linear(64, 10)), First()
    trainer = Trainer(model, train_dl=DataLoader(data, 32, shuffle=True),
                      loss_fn=torch.nn.CrossEntropyLoss(), max_steps=20, hooks=[first],
                      device="cpu", **settings)
    began = time.perf_counter()
    trainer.fit()
    return first.at - began
seconds(progress=False, record=False)
"""
OFF = "print(sorted(round(1000 * seconds(progress=False), 1) for _ in range(7))[3])"
ON = "print(round(1000 * seconds(), 1))"


def main():
    """Run the cells in a kernel of their own and print what they said."""
    cells = [CELL, OFF, ON, ON, ON]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    texts = ["".join(out.get("text", "") for out in cell.outputs if out.output_type == "stream")
             for cell in notebook.cells[1:]]
    off, *on = (float(text.strip().splitlines()[-1]) for text in texts)
    print(f"from fit() to the first batch, ms: without a panel {off:.1f}; with it, the first time "
          f"{on[0]:.0f}, then {on[1]:.0f} and {on[2]:.0f}")


if __name__ == "__main__":
    main()
