"""The pages for people who come from another trainer:
what they name exists here, and no feature of the other is left out."""

import ast
import functools
import inspect
import re
from pathlib import Path

import nbformat
import pytest
import torch
import trainer_nb
from torch import nn
from trainer_nb import Task, Trainer
from trainer_nb.core.engine import Engine
from trainer_nb.core.hook import POINTS
from trainer_nb.core.state import FitResult

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "nbs" / "coming_from"

# What users of each system have, in its own words: each must stand in the left column of its page.
BASE_TRAINER = """build_data_loader build_model build_optimizer build_lr_scheduler
    build_grad_scaler build_hooks forward (loss,|records) max_steps grad_clip
    max_non_finite_grad_retries mixed_precision "fp16" "bf16" gradient_accumulation_steps
    workspace device no_sync_accumulate state_dict_options logger LossNoneWarning step_info
    data_time step_time grad_norm memory retries on_before_train on_after_train on_before_step
    on_after_step on_before_optimizer_step on_log on_log_images dry_run on_state_dict
    on_load_state_dict ProgressHook interval with_records sync eta_warmup show_units trainer.log
    trainer.log_images scheduler keep_previous keep_interval keep_steps path load exit_signals
    exit_code exit_wait image_format project config tags max_images state_dict load_state_dict
    train() unwrap map_nested_tensor key_average DDP FSDP no_sync registry"""
FEATURES = {
    "10_trainer_tools": """Trainer( train_step train_dl valid_dl eval_step optim epochs hooks
        device config before_fit after_fit after_cancel order get_hook describe_hooks hook.store
        hook.get MainProcessHook LambdaHook do_backward do_opt_step do_zero_grad StepState
        batch_idx optimizer_step samples_seen epoch grad_accum_steps num_processes
        is_grad_accum_boundary x-axis AMPHook LRSchedulerHook GradientAccumulationHook
        GradClipHook EMAHook AccelerateHook CheckpointHook Loss Accuracy LRStats SamplesPerSecond
        JSONL wandb trackio ProgressBarHook MemoryProfilerHook EmptyCudaCacheHook
        save_every_steps keep_last best|by|a|metric interrupted model_final config.yaml
        resume|mid-epoch""",
    "11_trainloop": BASE_TRAINER
    + " CheckpointingHook StatsHook CUDAMaxMemoryHook EMAHook use_buffers WandbHook "
      "TensorBoardHook ImageFileLoggerHook",
    "12_mini_trainer": BASE_TRAINER
    + " CheckpointingHook LoggingHook CudaMaxMemoryHook EmaHook decay update_interval WandbHook "
      "TensorBoard ImageFileLoggerHook",
    "13_pymarlin": """ModuleInterface get_optimizers_schedulers get_train_dataloader
        get_val_dataloaders callbacks backend sp sp-amp ddp ddp-amp custom train() validate()
        on_end_val_epoch collected|outputs train_step_batch_size accumulation
        estimated_global_steps_per_epoch max_train_steps_per_epoch max_val_steps_per_epoch
        save_checkpoint force save_model_checkpoint load_checkpoints get_state update_state
        reset_optimizers_schedulers scalars images histograms PR|curves stdout TensorBoard
        over|an|epoch ranks""",
    "14_autrainer": """training_type epoch step iterations eval_frequency save_frequency
        inference_batch_size train() tracking|metric best|state cb_on_train_begin cb_on_train_end
        cb_on_iteration_begin cb_on_iteration_end cb_on_step_begin cb_on_step_end
        cb_on_loader_exhausted cb_on_val_begin cb_on_val_end cb_on_val_step_begin
        cb_on_test_begin cb_on_test_end cb_on_test_step_begin fixed|order dataset model optimizer
        scheduler criterion logger callback indices targets losses outputs predictions train dev
        test results.csv config metrics.csv best_results.yaml per-iteration|states plots timers
        continue_training remove_continued_runs progress_bar per-sample|losses custom_step SAM
        per|batch per|evaluation cfg swept""",
    "15_raw_loop": """epoch batch model.to(device) model.train() model.eval() loss_fn
        loss.backward() optimizer.step() optimizer.zero_grad() accumulation clip_grad_norm_
        torch.autocast GradScaler scheduler.step() isfinite torch.no_grad() losses print tqdm
        torch.manual_seed torch.save torch.load best patience average|of|the|weights
        DistributedDataParallel rate first|step""",
    "16_lightning": """LightningModule training_step validation_step test_step predict_step
        configure_optimizers interval monitor estimated_stepping_batches self.log on_step on_epoch
        prog_bar sync_dist save_hyperparameters manual_optimization toggle_optimizer backward
        optimizer_step optimizer_zero_grad configure_gradient_clipping gradient_clip_algorithm
        freeze current_epoch global_step all_gather to_onnx LightningDataModule train_dataloader
        val_dataloader test_dataloader dataloader_idx prepare_data setup transfer_batch_to_device
        reload_dataloaders_every_n_epochs use_distributed_sampler max_epochs max_steps max_time
        min_epochs min_steps accelerator devices precision accumulate_grad_batches
        gradient_clip_val check_val_every_n_epoch val_check_interval num_sanity_val_steps
        limit_train_batches limit_val_batches limit_test_batches limit_predict_batches
        overfit_batches fast_dev_run log_every_n_steps enable_progress_bar enable_checkpointing
        enable_model_summary barebones default_root_dir seed_everything deterministic benchmark
        detect_anomaly profiler inference_mode strategy num_nodes sync_batchnorm plugins Callback
        on_fit_start on_fit_end on_train_epoch_start on_train_epoch_end on_train_batch_start
        on_train_batch_end on_before_backward on_after_backward on_before_optimizer_step
        on_before_zero_grad on_validation_start on_validation_epoch_end on_test_start on_exception
        state_dict on_save_checkpoint on_load_checkpoint should_stop callback_metrics
        rank_zero_only ModelCheckpoint save_top_k every_n_train_steps train_time_interval save_last
        OnExceptionCheckpoint EarlyStopping stopping_threshold EMAWeightAveraging
        StochasticWeightAveraging LearningRateMonitor LearningRateFinder BatchSizeFinder
        GradientAccumulationScheduler BackboneFinetuning DeviceStatsMonitor ThroughputMonitor
        SpikeDetection BasePredictionWriter ModelSummary ModelPruning LambdaCallback Timer
        TQDMProgressBar TensorBoardLogger WandbLogger CSVLogger MLFlowLogger trainer.fit
        ckpt_path save_checkpoint load_from_checkpoint trainer.validate trainer.test
        trainer.predict LightningCLI Fabric changes|a|rate""",
    "18_hf_trainer": """Trainer(model compute_loss training_step
        compute_loss_func num_items_in_batch train_dataset eval_dataset data_collator
        processing_class remove_unused_columns get_train_dataloader model_init compute_metrics
        preprocess_logits_for_metrics callbacks optimizers create_scheduler Seq2SeqTrainer
        predict_with_generate num_train_epochs max_steps per_device_train_batch_size
        gradient_accumulation_steps auto_find_batch_size dataloader_num_workers
        train_sampling_strategy eval_strategy eval_steps eval_on_start eval_delay
        eval_accumulation_steps label_smoothing_factor learning_rate weight_decay optim
        lr_scheduler_type warmup_steps max_grad_norm bf16 fp16 tf32 gradient_checkpointing
        torch_compile torch_empty_cache_steps neftune_noise_alpha seed data_seed full_determinism
        logging_steps logging_nan_inf_filter include_num_input_tokens_seen report_to log_history
        disable_tqdm output_dir save_strategy save_steps save_total_limit load_best_model_at_end
        metric_for_best_model save_model resume_from_checkpoint ignore_data_skip
        enable_jit_checkpoint push_to_hub HfArgumentParser trainer.train() trainer.evaluate()
        trainer.predict hyperparameter_search is_world_process_zero changes|a|rate
        TrainerCallback on_train_begin on_train_end on_epoch_begin on_epoch_end on_step_begin
        on_substep_end on_step_end on_pre_optimizer_step on_optimizer_step on_evaluate on_predict
        on_prediction_step on_log on_save should_training_stop should_evaluate global_step
        best_metric EarlyStoppingCallback ProgressCallback DDP fsdp deepspeed
        average_tokens_across_devices""",
    "19_accelerate": """Accelerator() notebook_launcher mixed_precision
        gradient_accumulation_steps accelerator.device split_batches dispatch_batches even_batches
        use_seedable_sampler use_stateful_dataloader rng_types log_with project_dir dynamo_backend
        fsdp_plugin deepspeed_plugin megatron_lm_plugin kwargs_handlers TPUs accelerator.prepare
        epoch batch accelerator.accumulate accelerator.backward accelerator.sync_gradients
        accelerator.clip_grad_norm_ accelerator.clip_grad_value_ accelerator.unscale_gradients
        optimizer.step() optimizer.zero_grad() scheduler.step()
        accelerator.optimizer_step_was_skipped accelerator.no_sync join_uneven_inputs
        accelerator.autocast check_trigger model.eval() gather_for_metrics accelerator.gather
        reduce pad_across_processes find_executable_batch_size LocalSGD is_main_process
        on_main_process num_processes process_index accelerator.print main_process_first
        wait_for_everyone split_between_processes unwrap_model save_state load_state
        skip_first_batches register_for_checkpointing register_save_state_pre_hook save_model
        get_state_dict init_trackers accelerator.log end_training GeneralTracker profile
        free_memory device_map changing|a|rate""",
    "17_fastai": """Learner(dls DataLoaders DataBlock vision_learner loss_func opt_func wd moms
        splitter lr=slice cbs add_cb metrics path set_seed learn.to_fp16() to_bf16 to_channelslast
        learn.summary() distrib_ctx learn.fit fit_one_cycle fit_flat_cos fit_sgdr ParamScheduler
        fine_tune learn.freeze() unfreeze() lr_find() start_epoch SkipToEpoch learn.validate()
        get_preds with_loss learn.predict tta show_results Interpretation plot_top_losses
        changes|a|rate learn.save learn.load with_opt learn.export() load_learner CSVLogger
        TensorBoardCallback WandbCallback CometCallback Callback order run_train run_valid
        after_create before_fit after_fit before_epoch before_train after_train after_epoch
        before_validate after_validate before_batch after_pred after_loss after_batch
        before_backward after_backward before_step after_step after_cancel_fit CancelFitException
        CancelEpochException CancelBatchException CancelStepException self.xb self.yb self.pred
        self.loss self.epoch self.iter pct_train learn.recorder plot_loss plot_sched
        show_training_loop ProgressCallback ShowGraphCallback SaveModelCallback
        EarlyStoppingCallback ReduceLROnPlateau TerminateOnNaNCallback GradientAccumulation
        GradientClip ShortEpochCallback MixedPrecision MixUp CutMix BnFreeze ActivationStats
        HookCallback GatherPredsCallback ModelResetter RNNRegularizer""",
    "20_keras": """model.compile optimizer learning_rate LearningRateSchedule loss loss_weights
        metrics weighted_metrics jit_compile run_eagerly steps_per_execution auto_scale_loss
        clipnorm clipvalue global_clipnorm use_ema SwapEMAWeights gradient_accumulation_steps
        weight_decay model.fit arrays batch_size tf.data.Dataset PyDataset epochs initial_epoch
        steps_per_epoch validation_steps validation_data validation_split validation_freq
        validation_batch_size class_weight sample_weight verbose callbacks History changes|a|rate
        Sequential model.evaluate model.predict train_on_batch train_step compute_loss test_step
        compute_metrics model.summary() trainable model.save load_model save_weights load_weights
        set_random_seed DataParallel ModelParallel backends Callback on_train_begin on_train_end
        on_epoch_begin on_epoch_end on_train_batch_begin on_train_batch_end on_test_begin
        on_test_batch_begin on_predict_begin stop_training LambdaCallback ModelCheckpoint
        save_freq BackupAndRestore EarlyStopping restore_best_weights LearningRateScheduler
        ReduceLROnPlateau TerminateOnNaN CSVLogger TensorBoard profile_batch RemoteMonitor
        ProgbarLogger OrbaxCheckpoint""",
}


def rows(page):
    """(left, right) of each row of the tables of a page, without their heads."""
    cells = nbformat.read(FOLDER / f"{page}.ipynb", as_version=4).cells
    lines = [line for cell in cells if cell.cell_type == "markdown"
             for line in cell.source.splitlines() if line.startswith("|")]
    split = [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [tuple(row) for row in split
            if row[0] != "what you had" and not set(row[0]) <= set("- ")]


# What is written in code, looked up in the package


@functools.cache
def sources():
    """All code of the package, joined."""
    return "\n".join(path.read_text(encoding="utf-8")
                     for path in sorted(Path(trainer_nb.__file__).parent.rglob("*.py")))


@functools.cache
def trained():
    """A trainer that has made a step, with a schedule and outputs to ask for."""
    class Least(Task):
        def build_model(self):
            return nn.Linear(2, 2)
    batches = [(torch.ones(2, 2), torch.tensor([0, 1]))]
    trainer = Trainer.from_task(Least, train_dl=batches, valid_dl=batches,
                                loss_fn=nn.CrossEntropyLoss(), max_steps=1, sched="cosine",
                                device="cpu",
                                progress=False)
    trainer.fit()
    return trainer


class Unknown(Exception):
    """A name that is nowhere."""


def known_names():
    """Names that may stand for themselves: public ones, hook points, with the prefix of components,
    Python's own."""
    names = {name: getattr(trainer_nb, name)
             for name in trainer_nb.__all__} | {"Engine": Engine, "trainer": trained()}
    points = {point: None for point in POINTS}
    return names | points | {f"cb_{point}": None
                             for point in POINTS} | {"TypeError": TypeError,
                                                     "KeyboardInterrupt": KeyboardInterrupt}


def member(owner, name):
    """An attribute of an object or class, also one that instances of a class get."""
    if hasattr(owner, name):
        return getattr(owner, name)
    if isinstance(owner, type):
        code = "\n".join(inspect.getsource(each) for each in owner.__mro__
                         if each.__module__.startswith("trainer_nb"))
        if (name in getattr(owner, "__dataclass_fields__", {})
            or re.search(rf"self\.{name}\b.*=", code)):
            return None
    raise Unknown(name)


def check_call(node):
    """What a call gives (its class, if that is known);
    Unknown for an argument that is not taken."""
    called = looked_up(node.func)
    if called is None or not callable(called):
        raise Unknown(ast.unparse(node.func))
    # it hands the others on
    parameters = inspect.signature(Trainer if called == Trainer.from_task else called).parameters
    for keyword in node.keywords:
        if (keyword.arg not in parameters
            or parameters[keyword.arg].kind is inspect.Parameter.VAR_KEYWORD):
            functions = called is trainer_nb.LambdaHook and keyword.arg in POINTS
            if not functions:
                raise Unknown(f"{ast.unparse(node.func)}({keyword.arg}=)")
    if len(node.args) > sum(each.kind is each.POSITIONAL_OR_KEYWORD
                            for each in parameters.values()):
        raise Unknown(f"{ast.unparse(node)}: too many arguments")
    for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
        if not isinstance(value, ast.Name):  # a name stands for anything of the reader's
            looked_up(value)
    return called if isinstance(called, type) else FitResult if called.__name__ == "fit" else None


def looked_up(node):
    """What an expression stands for, None where that is not followed any further;
    Unknown for what is not there."""
    if isinstance(node, ast.Name):
        if node.id not in known_names():
            raise Unknown(node.id)
        return known_names()[node.id]
    if isinstance(node, ast.Attribute):
        owner = looked_up(node.value)
        return None if owner is None else member(owner, node.attr)
    if isinstance(node, ast.Call):
        return check_call(node)
    if isinstance(node, ast.Constant):
        text = isinstance(node.value, str)
        # "skip:3" is told of as "skip:N"
        written = [node.value, re.sub(r"\d+", "N", node.value)] if text else []
        if text and not any(mark + each + mark in sources() for each in written for mark in "'\""):
            raise Unknown(repr(node.value))
        return None
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.expr) and not isinstance(each, ast.Name):
            looked_up(each)
    return None


def problem(code):
    """Why a piece of code of a right column does not exist here; None if it does."""
    text = re.sub(r"=(?=[,)])", "=...", code).replace("…", "...")
    try:
        looked_up(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        return f"{code}: {error}"
    except Unknown as error:
        return f"{code}: there is no {error}"
    return None


# The pages


@pytest.mark.parametrize("page", FEATURES)
def test_what_a_page_names_exists_here(page):
    """Public names, arguments, attributes, hook points and texts in the right columns."""
    found = [(left, code) for left, right in rows(page) for code in re.findall(r"`([^`]+)`", right)]
    assert len(found) > 40
    assert [f"{left}: {problem(code)}" for left, code in found if problem(code)] == []


@pytest.mark.parametrize("page", FEATURES)
def test_a_page_leaves_no_feature_out(page):
    """Each row has an answer, and what the system has stands on the left."""
    left = "\n".join(had for had, _ in rows(page))
    missing = [word.replace("|", " ") for word in FEATURES[page].split()
               if not re.search(rf"(?<!\w){re.escape(word.replace('|', ' '))}", left)]
    assert missing == []
    assert all(len(row) == 2 and all(row) for row in rows(page))


@pytest.mark.parametrize("page", FEATURES)
def test_pages_that_are_linked_to_are_there(page):
    """Links from one notebook to another."""
    text = (FOLDER / f"{page}.ipynb").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+\.ipynb)", text)
    assert len(links) >= 4
    assert [link for link in links if not (FOLDER / link).resolve().is_file()] == []


def test_every_page_is_looked_at():
    """No page without its list of features."""
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(FEATURES)


@pytest.mark.parametrize("code", [
    "Trainr", "Trainer(max_step=)", "CheckpointHook(keep_evry=3)", "trainer.tests(dl)",
    "trainer.fit().bests", "StepState.samples", "befor_batch",
    "cb_on_train_begin", '"valid/accuracies"', "Trainer(best=(\"valid/accuracies\", \"max\"))",
    "LambdaHook(befor_fit=)", "EMAHook.ema_modell",
    "trainer.history.to_panda()", "Trainer(a, b, c, d, e)",
    "Trainer(hooks=[CheckpointHook(evry=1)])", "trainer.step_state.steps", "Trainer(epochs="])
def test_what_does_not_exist_is_noticed(code):
    """The look-up itself can fail."""
    assert problem(code)
