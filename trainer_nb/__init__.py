__version__ = "0.1.0"

from importlib import import_module as _import_module

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


def __getattr__(name):
    """Import a public name at its first use."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_EXPORTS})
