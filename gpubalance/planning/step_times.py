"""What timestamped steps say of each device, and how exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.numbers.stats import median
from gpubalance.settings.batch_split import BatchSplit


@dataclass(frozen=True)
class StepTimes:
    """A step's seconds, or the medians of several: each device's compute and update, and sync.

    The rest is what a step takes beside them, by the clock: the host's work, a wait for data.
    """

    split: BatchSplit
    compute_s: tuple[float, ...]
    update_s: tuple[float, ...]
    sync_s: float
    rest_s: float = 0.0

    @classmethod
    def of(cls, steps: Sequence[StepTimes]) -> StepTimes:
        """The medians of some steps of one split.

        Those of compute are of each device's part of it: what makes a step longer for all devices,
        as longer samples do, changes no part.
        """
        totals_s = [sum(step.compute_s) for step in steps]
        total_s = median(totals_s)
        computes_s = [
            total_s * median(parts) for parts in zip(*map(parts_of, steps), strict=True)
        ]
        updates_s = map(median, zip(*(step.update_s for step in steps), strict=True))
        sync_s = median([step.sync_s for step in steps])
        rest_s = median([step.rest_s for step in steps])
        return cls(steps[-1].split, tuple(computes_s), tuple(updates_s), sync_s, rest_s)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """cᵢ + uᵢ: each device's compute and update."""
        return tuple(map(sum, zip(self.compute_s, self.update_s, strict=True)))

    @property
    def step_time_s(self) -> float:
        """max (cᵢ + uᵢ) + sync + rest."""
        return max(self.busy_s) + self.common_s

    @property
    def common_s(self) -> float:
        """Sync and rest: what all devices wait for, however they share a batch."""
        return self.sync_s + self.rest_s


def parts_of(step: StepTimes) -> tuple[float, ...]:
    """Each device's part of the compute of all."""
    total_s = sum(step.compute_s)
    return tuple(compute_s / total_s for compute_s in step.compute_s)
