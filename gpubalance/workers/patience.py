"""How long a worker may be silent. Only silence ends a worker, not slowness."""

from __future__ import annotations

from gpubalance.settings.record import Record
from gpubalance.workers.check_messages import Copy, Inspect, Reduce, Survey
from gpubalance.workers.messages import (
    CountFlops,
    Measure,
    Open,
    Pipe,
    Pull,
    TimeBlocks,
    TimeSums,
    Trace,
)

# TensorFlow, from a slow disk, and the GPUs; counted before the first answer
LOADS_WITHIN_S = 180.0
_OPENS_WITHIN_S = 300.0
# Tracing, XLA's compilation, cuDNN's search for algorithms
FIRST_STEP_WITHIN_S = 900.0
_STEP_WITHIN_S = 60.0
_STEPS_WITHIN = 30.0  # times as long as such a timing took before
_CHECKS_WITHIN_S = 120.0
# The fraction of a silent worker's time after which it may itself report which of its devices
# hangs.
PATIENCE_PART = 0.5
# What the worker is doing, and how long it may be silent: None if that follows from its own timings
ASKED: dict[type[Record], tuple[str, float | None]] = {
    Open: ("building {settings.model}", _OPENS_WITHIN_S),
    CountFlops: ("counting the step's operations", FIRST_STEP_WITHIN_S),
    Measure: ("training with batches {split} on {names}", None),
    Pull: ("taking batches from --data", None),
    Trace: ("tracing steps on {names}", FIRST_STEP_WITHIN_S),
    TimeSums: ("summing gradients over {names}", FIRST_STEP_WITHIN_S),
    TimeBlocks: ("timing blocks of the model on {names}", None),
    Pipe: ("training in segments on {names}", None),
    Survey: ("asking TensorFlow for its GPUs", _CHECKS_WITHIN_S),
    Inspect: ("loading TensorFlow and its libraries", _CHECKS_WITHIN_S),
    Copy: ("copying between {names}", _CHECKS_WITHIN_S),
    Reduce: ("summing over {names}", _CHECKS_WITHIN_S),
}


def patience_for(steps: int, slowest_s: float | None) -> float:
    """Seconds that so many steps may take; `slowest_s` is the slowest such step so far."""
    if slowest_s is None:
        return FIRST_STEP_WITHIN_S
    return max(_STEP_WITHIN_S, _STEPS_WITHIN * slowest_s * steps)
