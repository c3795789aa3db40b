"""What a split is wanted for, and what it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gpubalance.planning.model import Curve, Line
from gpubalance.settings.shares import Shares

Binds: TypeAlias = Literal["speed", "memory", "granularity", "global batch", "sync"]

# What (global batch, step time in seconds) are worth: above 0, and for arrays of them too. A larger global batch in
# the same time is not worth less, a longer time for the same one not more.
Objective: TypeAlias = Callable[[Any, Any], Any]


def throughput(global_batch: Any, step_time_s: Any) -> Any:
    """Samples per second."""
    return global_batch / step_time_s


class NoSplitError(ValueError):
    """No split is as asked for. `below` and `above` are the nearest global batches that are possible, or None."""

    def __init__(self, reason: str, below: int | None = None, above: int | None = None) -> None:
        super().__init__(reason)
        self.below = below
        self.above = above


class TooFineError(ValueError):
    """More batches are as good as each other than can be compared: batches are too fine for what devices can take."""


@dataclass(frozen=True)
class Load:
    """A device: its compute time over the batch, and the most samples, in one micro-batch, that it may be given.

    `update_s` is its weight update: once a step, whatever its batch and micro-batches. `host` is a number.
    """

    model: Line | Curve
    limit: int
    update_s: float = 0.0
    host: int = 0

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"a batch limit of {self.limit}")
        if not 0 <= self.update_s < math.inf:
            raise ValueError(f"an update of {self.update_s} s")
        if isinstance(self.model, Line):
            if min(self.model.alpha_s, self.model.beta_s) < 0 or self.model.alpha_s + self.model.beta_s <= 0:
                raise ValueError("a step time that is not above 0, or falls with the batch")
        elif min(self.model.step_times_s) <= 0:
            raise ValueError("a curve that is not above 0")


@dataclass(frozen=True)
class Problem:
    """What a split is wanted for. Batches are multiples of `multiple`; `sync_s` is a step's sync over devices.
    `sync_of_fewer_s` is that over 1, 2, … of the loads' hosts, where it is less; empty where that is not known.

    `micro_batches` is the most that a device may take its batch in; 1 is no accumulation. Where the global batch is
    free, the fewest are taken that are worth `within` that part of the best: it grows only where that clearly pays.
    """

    loads: tuple[Load, ...]
    sync_s: float = 0.0
    sync_of_fewer_s: tuple[float, ...] = ()
    multiple: int = 1
    global_batch: int | None = None
    max_global_batch: int | None = None
    micro_batches: int = 1
    within: float = 0.0
    objective: Objective = throughput

    def __post_init__(self) -> None:
        syncs_are_sound = all(0 <= sync_s < math.inf for sync_s in (self.sync_s, *self.sync_of_fewer_s))
        if not (syncs_are_sound and self.multiple >= 1 and self.micro_batches >= 1):
            raise ValueError("sync must not be below 0, the multiple and the micro-batches not below 1")
        if not self.loads:
            raise ValueError("a split needs a device")

    def value(self, found: Allocation) -> float:
        """What a split is worth, by the objective."""
        return float(self.objective(found.split.global_batch, found.step_time_s))


@dataclass(frozen=True)
class Allocation:
    """A split, and each device's compute time in it, by the models.

    `step_time_s` is the longest compute and update of a device in use and, with two or more of them, sync. `binds` is
    why a device has no more.
    """

    split: Shares
    compute_s: tuple[float, ...]
    step_time_s: float
    binds: tuple[Binds, ...]

    @property
    def throughput(self) -> float:
        """B/T, in samples per second."""
        return self.split.global_batch / self.step_time_s
