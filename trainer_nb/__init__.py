__version__ = "0.1.0"

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

# The public names by task: name -> the module that defines it. A name is imported at its first
# use, so `import trainer_nb` loads nothing that draws. Only this table is written by hand: from it
# `make export` makes the block below for editors, and the page *Names by task* its headings.
_BY_TASK = {
    "Train": {
        "Trainer": "trainer",
        "Task": "tools.task",
        "launch": "remote.launch_script",
    },
    "Inspect a run": {
        "background_runs": "core.looks",
        "FitResult": "core.state",
        "RunState": "core.state",
        "StepState": "core.state",
        "History": "hooks.recorder",
        "Journal": "core.journal",
        "Tunable": "core.tunable",
    },
    "Runs in other processes, and replay": {
        "attach": "remote.runs",
        "RemoteRun": "remote.remote_run",
        "ReplayHook": "tools.replay",
    },
    "Write a hook": {
        "Hook": "core.hook",
        "LambdaHook": "core.hook",
        "MainProcessHook": "core.hook",
    },
    "Records and progress": {
        "RecorderHook": "hooks.recorder",
        "ProgressHook": "hooks.progress",
        "MemoryHook": "hooks.memory",
        "ProfilerHook": "hooks.memory",
        "EmptyCacheHook": "hooks.memory",
    },
    "Learning rates and weights": {
        "SchedulerHook": "hooks.schedule",
        "LayerGroupsHook": "hooks.layer_groups",
        "EMAHook": "hooks.ema",
    },
    "Checkpoints and snapshots": {
        "CheckpointHook": "hooks.checkpoint",
        "SnapshotHook": "hooks.snapshots",
    },
    "Inspect data and layers": {
        "OutputsHook": "hooks.outputs",
        "SamplesHook": "hooks.samples",
        "LayerStatsHook": "hooks.layer_stats",
    },
    "Alerts, rules and early stopping": {
        "AlertsHook": "hooks.alerts",
        "Alert": "hooks.alerts",
        "RuleHook": "hooks.rules",
        "EarlyStopHook": "hooks.early_stop",
    },
    "Trackers": {
        "TrackerHook": "hooks.trackers",
        "JSONLHook": "hooks.trackers",
        "ImageFileHook": "hooks.trackers",
        "TensorBoardHook": "hooks.tracker_services",
        "WandbHook": "hooks.tracker_services",
        "TrackioHook": "hooks.tracker_services",
    },
    "Functions for custom steps": {
        "unwrap": "core.engine",
        "key_average": "core.step",
        "map_nested_tensor": "core.data",
    },
    "Errors": {
        "NonFiniteError": "core.engine",
        "CheckpointError": "support.saved",
        "ProcessLostError": "engines.distributed",
    },
}
_EXPORTS = {name: module for names in _BY_TASK.values() for name, module in names.items()}

__all__ = sorted(_EXPORTS)

if _TYPE_CHECKING:  # made by `make export` from the table above
    from .trainer import Trainer as Trainer
    from .tools.task import Task as Task
    from .remote.launch_script import launch as launch
    from .core.looks import background_runs as background_runs
    from .core.state import FitResult as FitResult
    from .core.state import RunState as RunState
    from .core.state import StepState as StepState
    from .hooks.recorder import History as History
    from .core.journal import Journal as Journal
    from .core.tunable import Tunable as Tunable
    from .remote.runs import attach as attach
    from .remote.remote_run import RemoteRun as RemoteRun
    from .tools.replay import ReplayHook as ReplayHook
    from .core.hook import Hook as Hook
    from .core.hook import LambdaHook as LambdaHook
    from .core.hook import MainProcessHook as MainProcessHook
    from .hooks.recorder import RecorderHook as RecorderHook
    from .hooks.progress import ProgressHook as ProgressHook
    from .hooks.memory import MemoryHook as MemoryHook
    from .hooks.memory import ProfilerHook as ProfilerHook
    from .hooks.memory import EmptyCacheHook as EmptyCacheHook
    from .hooks.schedule import SchedulerHook as SchedulerHook
    from .hooks.layer_groups import LayerGroupsHook as LayerGroupsHook
    from .hooks.ema import EMAHook as EMAHook
    from .hooks.checkpoint import CheckpointHook as CheckpointHook
    from .hooks.snapshots import SnapshotHook as SnapshotHook
    from .hooks.outputs import OutputsHook as OutputsHook
    from .hooks.samples import SamplesHook as SamplesHook
    from .hooks.layer_stats import LayerStatsHook as LayerStatsHook
    from .hooks.alerts import AlertsHook as AlertsHook
    from .hooks.alerts import Alert as Alert
    from .hooks.rules import RuleHook as RuleHook
    from .hooks.early_stop import EarlyStopHook as EarlyStopHook
    from .hooks.trackers import TrackerHook as TrackerHook
    from .hooks.trackers import JSONLHook as JSONLHook
    from .hooks.trackers import ImageFileHook as ImageFileHook
    from .hooks.tracker_services import TensorBoardHook as TensorBoardHook
    from .hooks.tracker_services import WandbHook as WandbHook
    from .hooks.tracker_services import TrackioHook as TrackioHook
    from .core.engine import unwrap as unwrap
    from .core.step import key_average as key_average
    from .core.data import map_nested_tensor as map_nested_tensor
    from .core.engine import NonFiniteError as NonFiniteError
    from .support.saved import CheckpointError as CheckpointError
    from .engines.distributed import ProcessLostError as ProcessLostError


def __getattr__(name):
    """Import a public name at its first use."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_EXPORTS})
