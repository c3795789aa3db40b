"""Runs TensorFlow's profiler around some steps, and puts its files where TensorBoard looks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from gpubalance.settings.choices import TRACES
from gpubalance.settings.measuring import Tracing

_GPU_PLANE = "/device:GPU:"


def record_trace(
    step: Callable[[], Any], wait: Callable[[], None], tracing: Tracing, *, gpus: int
) -> str | None:
    """Runs and traces `tracing.steps` steps; `wait` returns when the devices have done them.

    Returns why fewer than `gpus` GPUs are in the trace, None if all are. Raises OSError if it can't
    be written, and TensorFlow's own errors if its profiler does not start.
    """
    profiler = tf.profiler.experimental
    folder = Path(tracing.folder)
    target = folder / TRACES / tracing.name
    target.parent.mkdir(parents=True, exist_ok=True)
    # The profiler names its folder by the second: two at once would write into the same one.
    with tempfile.TemporaryDirectory(prefix=".trace-", dir=folder) as temporary:
        with profiler.Profile(temporary):
            for number in range(tracing.steps):
                # `_r` marks a step's root: TensorBoard groups events under it by `step_num`.
                with profiler.Trace("train", step_num=number, _r=1):
                    step()
            wait()
        (recorded,) = (Path(temporary) / TRACES).iterdir()
        recorded.rename(target)
    return missing_gpus(target, gpus) if gpus else None


def missing_gpus(folder: Path, gpus: int) -> str | None:
    """The trace's own reason for missing GPUs, None if none is missing.

    Without CUPTI there is no error in it.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    traced = set()
    errors = []
    for path in folder.glob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        errors += space.errors
        for plane in space.planes:
            has_events = any(line.events for line in plane.lines)
            if plane.name.startswith(_GPU_PLANE) and has_events:
                traced.add(plane.name)
    if len(traced) >= gpus:
        return None
    return "; ".join(errors) or f"CUPTI reported {len(traced)} of {gpus} GPUs"
