"""What a split is wanted for, and what it is: the records of the solver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpubalance.planning.fleet import Load
from gpubalance.settings.shares import Shares

# With micro_batches="auto": up to so many, and as few as come so near to the best of them.
AUTO_MOST = 8
AUTO_WITHIN = 0.05

Binds: TypeAlias = Literal["speed", "memory", "granularity", "global batch", "sync"]


class NoSplitError(ValueError):
    """No split is as asked for. `below` and `above` are the nearest global batches that are possible, or None."""

    def __init__(self, reason: str, below: int | None = None, above: int | None = None) -> None:
        super().__init__(reason)
        self.below = below
        self.above = above


@dataclass(frozen=True)
class Problem:
    """What a split is wanted for. Batches are multiples of `multiple`; `sync_s` is a step's sync over devices.

    `micro_batches` is the most that a device's batch may be done in; 1 is no accumulation. "auto" is the least, up to
    8, whose throughput is within 5 % of the best with up to 8: so a global batch grows only where that clearly pays.
    """

    loads: tuple[Load, ...]
    sync_s: float = 0.0
    multiple: int = 1
    global_batch: int | None = None
    max_global_batch: int | None = None
    micro_batches: int | Literal["auto"] = 1

    def __post_init__(self) -> None:
        if not (0 <= self.sync_s < math.inf and self.multiple >= 1 and (self.most_micro_batches >= 1)):
            raise ValueError("sync must not be below 0, the multiple and the micro-batches not below 1")
        if not self.loads:
            raise ValueError("a split needs a device")

    @property
    def most_micro_batches(self) -> int:
        """K: no device takes its batch in more."""
        return AUTO_MOST if self.micro_batches == "auto" else self.micro_batches


@dataclass(frozen=True)
class Allocation:
    """A split, and each device's compute time in it, by the models.

    `step_time_s` is max `compute_s` and, with two devices or more in use, sync. `binds` is why a device has no more.
    """

    split: Shares
    compute_s: tuple[float, ...]
    step_time_s: float
    binds: tuple[Binds, ...]

    @property
    def throughput(self) -> float:
        """B/T, in samples per second."""
        return self.split.global_batch / self.step_time_s
