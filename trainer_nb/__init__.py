__version__ = "0.1.0"

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

# Public name -> the module that defines it. A name is imported at its first use,
# so `import trainer_nb` loads nothing that draws. Written by hand.
_EXPORTS = {
    "Trainer": "trainer",
    "FitResult": "core.state",
    "RunState": "core.state",
    "StepState": "core.state",
    "Hook": "core.hook",
    "LambdaHook": "core.hook",
    "MainProcessHook": "core.hook",
    "Tunable": "core.tunable",
    "Journal": "core.journal",
    "NonFiniteError": "core.engine",
    "CheckpointError": "core.saved",
    "map_nested_tensor": "core.data",
    "unwrap": "core.engine",
    "key_average": "core.step",
    "History": "hooks.recorder",
    "RecorderHook": "hooks.recorder",
    "ProgressHook": "hooks.progress",
    "SchedulerHook": "hooks.schedule",
    "CheckpointHook": "hooks.checkpoint",
    "SnapshotHook": "hooks.snapshots",
    "EMAHook": "hooks.ema",
    "LayerGroupsHook": "hooks.layer_groups",
    "OutputsHook": "hooks.outputs",
    "LayerStatsHook": "hooks.layer_stats",
    "SamplesHook": "hooks.samples",
    "EarlyStopHook": "hooks.early_stop",
    "AlertsHook": "hooks.alerts",
    "Alert": "hooks.alerts",
    "RuleHook": "hooks.rules",
    "JSONLHook": "hooks.trackers",
    "ImageFileHook": "hooks.trackers",
    "TrackerHook": "hooks.trackers",
    "TensorBoardHook": "hooks.tracker_services",
    "WandbHook": "hooks.tracker_services",
    "TrackioHook": "hooks.tracker_services",
    "MemoryHook": "hooks.memory",
    "ProfilerHook": "hooks.memory",
    "EmptyCacheHook": "hooks.memory",
    "ReplayHook": "tools.replay",
    "ProcessLostError": "tools.distributed",
    "launch": "remote.launch_script",
    "Task": "tools.task",
    "attach": "remote.runs",
    "RemoteRun": "remote.remote_run",
}

__all__ = sorted(_EXPORTS)

if _TYPE_CHECKING:  # the same table, for editors and type checkers; a test compares the two
    from .trainer import Trainer as Trainer
    from .core.state import (
        FitResult as FitResult,
        RunState as RunState,
        StepState as StepState,
    )
    from .core.hook import (
        Hook as Hook,
        LambdaHook as LambdaHook,
        MainProcessHook as MainProcessHook,
    )
    from .core.tunable import Tunable as Tunable
    from .core.journal import Journal as Journal
    from .core.engine import NonFiniteError as NonFiniteError, unwrap as unwrap
    from .core.saved import CheckpointError as CheckpointError
    from .core.data import map_nested_tensor as map_nested_tensor
    from .core.step import key_average as key_average
    from .hooks.recorder import History as History, RecorderHook as RecorderHook
    from .hooks.progress import ProgressHook as ProgressHook
    from .hooks.schedule import SchedulerHook as SchedulerHook
    from .hooks.checkpoint import CheckpointHook as CheckpointHook
    from .hooks.snapshots import SnapshotHook as SnapshotHook
    from .hooks.ema import EMAHook as EMAHook
    from .hooks.layer_groups import LayerGroupsHook as LayerGroupsHook
    from .hooks.outputs import OutputsHook as OutputsHook
    from .hooks.layer_stats import LayerStatsHook as LayerStatsHook
    from .hooks.samples import SamplesHook as SamplesHook
    from .hooks.early_stop import EarlyStopHook as EarlyStopHook
    from .hooks.alerts import AlertsHook as AlertsHook, Alert as Alert
    from .hooks.rules import RuleHook as RuleHook
    from .hooks.trackers import (
        JSONLHook as JSONLHook,
        ImageFileHook as ImageFileHook,
        TrackerHook as TrackerHook,
    )
    from .hooks.tracker_services import (
        TensorBoardHook as TensorBoardHook,
        WandbHook as WandbHook,
        TrackioHook as TrackioHook,
    )
    from .hooks.memory import (
        MemoryHook as MemoryHook,
        ProfilerHook as ProfilerHook,
        EmptyCacheHook as EmptyCacheHook,
    )
    from .tools.replay import ReplayHook as ReplayHook
    from .tools.distributed import ProcessLostError as ProcessLostError
    from .remote.launch_script import launch as launch
    from .tools.task import Task as Task
    from .remote.runs import attach as attach
    from .remote.remote_run import RemoteRun as RemoteRun


def __getattr__(name):
    """Import a public name at its first use."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_EXPORTS})
