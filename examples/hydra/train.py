"""Train what conf/config.yaml describes; every value of it can be changed on the command line.

    python examples/hydra/train.py optim.lr=0.01 model=cnn
    python examples/hydra/train.py --multirun optim.lr=0.1,0.01

Each run has a folder, outputs/... or multirun/..., in the folder where it is started; records, the
configuration and the picture of the run are in its subfolder run/.
`Trainer.from_config("outputs/.../run")` makes it again.
"""

import hydra

from trainer_nb import Trainer


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    """One run; returns what a sweeper may maximise."""
    with Trainer.from_config(cfg, allow=("digits_parts",)) as trainer:
        result = trainer.fit()
    print(f"{result.status}: {result.steps} steps, validation accuracy "
          f"{result.last['valid/accuracy']:.4f}", flush=True)
    return result.last["valid/accuracy"]


if __name__ == "__main__":
    main()
