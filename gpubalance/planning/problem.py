"""The problem that a split solves, and the split itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from gpubalance.planning.model import Curve, Line
from gpubalance.planning.sync import Syncs
from gpubalance.settings.batch_split import BatchSplit, pieces

Binds: TypeAlias = Literal[
    "speed", "memory", "granularity", "global batch", "plateau", "sync"
]

# The value of (global batch, step time in seconds), numbers or arrays: above 0, never less for a
# larger global batch in the same time, never more for a longer time.
Objective: TypeAlias = Callable[[Any, Any], Any]


def throughput(global_batch: Any, step_time_s: Any) -> Any:
    """Samples per second."""
    return global_batch / step_time_s


class NoSplitError(ValueError):
    """No split meets the request.

    `below` and `above` are the nearest possible global batches, or None.
    """

    below: int | None = None
    above: int | None = None


class TooFineError(ValueError):
    """The granules are so fine that too many batches are equally good to be compared."""


@dataclass(frozen=True)
class Load:
    """A device: its compute time over the batch, and how much it can take.

    `model` is the device's step-time model: `model.step_time_s(b)` gives the seconds of compute for
    b samples, above 0 and without the update. `limit` is the most samples in one micro-batch.
    `update_s` is the weight update: once a step, whatever the batch and micro-batches. `host` is a
    number. A `required` device gets samples whether that is worth it or not.
    """

    model: Line | Curve
    limit: int
    update_s: float = 0.0
    host: int = 0
    required: bool = False

    def compute_s(self, batch: int, micro_batch: int) -> float:
        """Seconds of compute for so many samples in micro-batches of that size, as measured."""
        seconds = 0.0
        for count, size in pieces(batch, micro_batch):
            seconds += count * self.model.measured_s(size)
        return seconds


@dataclass(frozen=True)
class Problem:
    """The devices, and what the split is for.

    Batches are multiples of `multiple`; `sync` is known by sets of devices.
    `micro_batches` is the most that a device's batch may be divided into; 1 is no accumulation.
    With a free global batch, the plan takes the fewest micro-batches with at least
    (1 − `micro_batch_tolerance`) of the best value: the batch grows only if that clearly pays.
    """

    loads: tuple[Load, ...]
    sync: Syncs = field(default_factory=Syncs)
    multiple: int = 1
    global_batch: int | None = None
    max_global_batch: int | None = None
    micro_batches: int = 1
    micro_batch_tolerance: float = 0.0
    objective: Objective = throughput

    def computes_s(self, split: BatchSplit) -> list[float]:
        """Each device's compute in a split, as measured; 0 without samples."""
        pairs = zip(split.batches, split.micro_batches, strict=True)
        return [
            load.compute_s(*pair) if pair[0] else 0.0
            for load, pair in zip(self.loads, pairs, strict=True)
        ]

    def busy_s(self, computes_s: Sequence[float]) -> float:
        """The longest compute plus update of a device, of those that compute at all."""
        busy_s = [0.0]
        for load, compute_s in zip(self.loads, computes_s, strict=True):
            if compute_s:
                busy_s.append(compute_s + load.update_s)
        return max(busy_s)

    def step_time_s(self, computes_s: Sequence[float]) -> float:
        """The step time if each device computes so long; 0 is a device without samples."""
        used = {device for device, compute_s in enumerate(computes_s) if compute_s}
        busy_s = self.busy_s(computes_s)
        return busy_s + float(self.sync.curve(used).at(busy_s))

    def value(self, allocation: Allocation) -> float:
        """The split's value by the objective."""
        return float(
            self.objective(allocation.split.global_batch, allocation.step_time_s)
        )


@dataclass(frozen=True)
class Allocation:
    """A split, and each device's compute time in it, by the models.

    `step_time_s` is the longest compute plus update of a device in use and, with two or more of
    them, sync. `binds` says why a device has no more.
    """

    split: BatchSplit
    compute_s: tuple[float, ...]
    step_time_s: float
    binds: tuple[Binds, ...]

    @property
    def throughput(self) -> float:
        """B/T, in samples per second."""
        return self.split.global_batch / self.step_time_s
