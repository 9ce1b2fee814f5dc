"""How each package does the same work: a function that trains a model on a loader, with the
features of the work."""

import contextlib
import io
import logging
import warnings

import torch
from torch import nn


def moved(batch, device):
    """The batch on the device, as a program does that moves its own."""
    if device == "cpu":
        return batch
    return tuple(each.to(device, non_blocking=True) for each in batch)


def raw(work, loader):
    """The loop by hand against itself: what the machine's noise is."""
    block = work.by_hand()
    block(iter(loader))
    return block.model


def trainer_nb(work, loader, **settings):
    """This package, with what the work asks for and nothing else."""
    from trainer_nb import EMAHook, Hook, Trainer

    class Three(Hook):
        def before_batch(self, trainer):
            pass

        def after_loss(self, trainer):
            pass

        def after_step(self, trainer):
            pass

    model, optim = work.parts()
    wants = work.features
    settings = {"non_finite": None, "record": "record" in wants,
                "progress": "bar" if "progress" in wants else False} | settings
    hooks = ([type(name, (Three,), {})() for name in ("One", "Two", "Three")]
             if "hooks" in wants else [])
    Trainer(
        model, train_dl=loader, loss_fn=nn.CrossEntropyLoss(), optim=optim, epochs=1,
        device=work.device, hooks=hooks,
        gradient_accumulation_steps=4 if "accumulation" in wants else 1,
        mixed_precision="bf16" if "bf16" in wants else None,
        grad_clip=1.0 if "clip" in wants else None,
        ema=EMAHook(0.999, warmup=False) if "ema" in wants else None,
        **settings).fit()  # fmt: skip
    return model


def trainer_nb_default(work, loader):
    """This package as it comes: history, a bar, and the look for gradients that are not finite."""
    return trainer_nb(work, loader, non_finite="raise", record=True, progress="bar")


def ignite(work, loader):
    """pytorch-ignite: an engine around a step of one's own, handlers for the rest."""
    from ignite.contrib.handlers import ProgressBar
    from ignite.engine import Engine, Events
    from ignite.handlers import EMAHandler

    model, optim = work.parts()
    loss_fn, wants = nn.CrossEntropyLoss(), work.features
    every = 4 if "accumulation" in wants else 1

    def step(engine, batch):
        x, y = moved(batch, work.device)
        if engine.state.iteration % every == 1 or every == 1:
            optim.zero_grad()
        with torch.autocast(work.device, dtype=torch.bfloat16, enabled="bf16" in wants):
            loss = loss_fn(model(x), y)
        (loss / every if every > 1 else loss).backward()
        if engine.state.iteration % every == 0:
            if "clip" in wants:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
        return loss.item() if "record" in wants else None

    engine = Engine(step)
    if "ema" in wants:
        EMAHandler(model, momentum=0.001).attach(engine,
                                                 event=Events.ITERATION_COMPLETED(every=every))
    if "record" in wants:
        kept = []
        engine.add_event_handler(Events.ITERATION_COMPLETED,
                                 lambda engine: kept.append(engine.state.output))
    if "progress" in wants:
        ProgressBar().attach(engine)
    engine.run(loader, max_epochs=1, epoch_length=len(loader))
    return model


def accelerate(work, loader):
    """Hugging Face Accelerate: the loop by hand with its wrappers."""
    from accelerate import Accelerator
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    wants = work.features
    accelerator = Accelerator(cpu=work.device == "cpu",
                              mixed_precision="bf16" if "bf16" in wants else "no",
                              gradient_accumulation_steps=4 if "accumulation" in wants else 1)
    bare, optim = work.parts()
    loss_fn = nn.CrossEntropyLoss()
    model, optim = accelerator.prepare(bare, optim)
    average = (AveragedModel(bare, multi_avg_fn=get_ema_multi_avg_fn(0.999))
               if "ema" in wants else None)
    kept = []
    for batch in loader:
        x, y = moved(batch, work.device)
        with accelerator.accumulate(model):
            optim.zero_grad()
            loss = loss_fn(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients and "clip" in wants:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            if average is not None and accelerator.sync_gradients:
                average.update_parameters(bare)
        if "record" in wants:
            kept.append(loss.item())
    return bare


def lightning(work, loader):
    """Lightning: a module and a Trainer."""
    import lightning as L
    from torch.optim.swa_utils import get_ema_multi_avg_fn

    wants = work.features
    model, optim = work.parts()

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.loss_fn = model, nn.CrossEntropyLoss()

        def training_step(self, batch, _):
            x, y = batch
            loss = self.loss_fn(self.net(x), y)
            if "record" in wants:
                self.log("loss", loss, prog_bar="progress" in wants)
            return loss

        def configure_optimizers(self):
            return optim

    callbacks = []
    if "ema" in wants:
        from lightning.pytorch.callbacks import WeightAveraging
        callbacks = [WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(0.999))]
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    L.Trainer(max_epochs=1, accelerator="cpu" if work.device == "cpu" else "gpu", devices=1,
              logger=False, enable_checkpointing=False,
              enable_progress_bar="progress" in wants,
              enable_model_summary=False,
              accumulate_grad_batches=4 if "accumulation" in wants else 1, callbacks=callbacks,
              precision="bf16-mixed" if "bf16" in wants else "32-true",
              gradient_clip_val=1.0 if "clip" in wants else None,
              barebones=False).fit(Module(), loader)  # fmt: skip
    return model


def fastai(work, loader):
    """fastai: a Learner; its optimizer wraps the one of torch."""
    from fastai.basics import DataLoaders, Learner, OptimWrapper
    from fastai.callback.core import Callback, CancelValidException
    from fastai.callback.training import GradientAccumulation, GradientClip

    class NoValidation(Callback):  # the loader trains by hand between its blocks
        def before_validate(self):
            raise CancelValidException

    wants = work.features
    if "bf16" in wants:
        raise NotImplementedError("no bf16 in this adapter")
    model, _ = work.parts()
    learner = Learner(DataLoaders(loader, loader), model, loss_func=nn.CrossEntropyLoss(),
                      train_bn=False,
                      opt_func=lambda params, **_: OptimWrapper(params, torch.optim.SGD, lr=0.01,
                                                                momentum=0.9),
                      cbs=[NoValidation(), *([GradientAccumulation(4), GradientClip(1.0)]
                                             if "accumulation" in wants else [])])
    quiet = contextlib.nullcontext() if "progress" in wants else learner.no_bar()
    with quiet, learner.no_logging():
        learner.fit(1, lr=0.01)
    return model


def trainer_tools(work, loader):
    """trainer-tools: hooks around a step of one's own."""
    from trainer_tools.hooks.ema import EMAHook
    from trainer_tools.hooks.optimization import AMPHook, GradClipHook, GradientAccumulationHook
    from trainer_tools.hooks.pbar import ProgressBarHook
    from trainer_tools.trainer import Trainer

    model, optim = work.parts()
    loss_fn, wants = nn.CrossEntropyLoss(), work.features
    hooks = []
    if "accumulation" in wants:
        hooks = [AMPHook(dtype=torch.bfloat16, device_type=work.device),
                 GradientAccumulationHook(4), GradClipHook(1.0), EMAHook(0.999)]
    if "progress" in wants:
        hooks.append(ProgressBarHook())
    def step(batch, trainer):
        x, y = moved(batch, work.device)
        return {"loss": loss_fn(model(x), y)}

    Trainer(model, step, loader, [], optim=optim, epochs=1, hooks=hooks, device=work.device).fit()
    return model


def trainloop(work, loader):
    """trainloop: a subclass that builds its parts."""
    from trainloop.hooks import EMAHook, ProgressHook
    from trainloop.trainer import BaseTrainer

    wants, loss_fn = work.features, nn.CrossEntropyLoss()
    made, optim = work.parts()

    class Trainer(BaseTrainer):
        def build_data_loader(self):
            return loader

        def build_model(self):
            return made

        def build_optimizer(self):
            return optim

        def build_hooks(self):
            return [*([EMAHook(0.999)] if "ema" in wants else []),
                    *([ProgressHook(interval=100)] if "progress" in wants else [])]

        def forward(self, batch):
            x, y = moved(batch, work.device)
            return loss_fn(self.model(x), y), {}

    every = 4 if "accumulation" in wants else 1
    Trainer(len(loader) // every, grad_clip=1.0 if "clip" in wants else None,
            mixed_precision="bf16" if "bf16" in wants else None,
            gradient_accumulation_steps=every, device=work.device).train()
    return made


PEERS = {each.__name__: each for each in (
    raw, trainer_nb, trainer_nb_default, trainer_tools, trainloop, ignite, accelerate, lightning,
    fastai)}


def train(name: str, work, loader):
    """The model that a peer has trained; what it prints goes nowhere."""
    with (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()),
          warnings.catch_warnings()):
        warnings.simplefilter("ignore")
        return PEERS[name](work, loader)
