"""What the stamped steps of an epoch say of each device."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpubalance.engine.step.points import COMPUTED, FINISHED, SUMMED, stamped_times
from gpubalance.planning.follow import SplitChange
from gpubalance.planning.noise import Norms, noise_scale
from gpubalance.planning.step_times import StepTimes
from gpubalance.settings.batch_split import BatchSplit

_POINTS = FINISHED + 1


class StampedStep(NamedTuple):
    """A step's seconds [replica, (began, computed, summed, finished)] and its split.

    To measure the noise, two more columns have its norms, unless each replica had the whole batch.
    """

    stamps: Any
    split: BatchSplit

    @property
    def summed_s(self) -> float:
        """When the gradients' sum was on all devices, by the first process's clock."""
        return float(self.stamps[:, SUMMED].max())

    @property
    def times(self) -> StepTimes:
        """Each device's times, and the sync."""
        times = stamped_times(self.stamps)
        sync_s = self.summed_s - float(self.stamps[:, COMPUTED].max())
        return StepTimes(self.split, times["compute_s"], times["update_s"], sync_s)


def norms_of(steps: Iterable[StampedStep]) -> list[Norms]:
    """The norms of those steps in which the noise was measured."""
    norms = []
    for stamps, split in steps:
        if stamps.shape[1] > _POINTS:
            own = float(stamps[:, _POINTS].sum())
            whole = float(stamps[0, _POINTS + 1])
            norms.append(Norms(split.global_batch, sum(split.counts), own, whole))
    return norms


@dataclass(frozen=True)
class EpochTimes:
    """An epoch's medians over its stamped steps, in seconds: each device's times, and the sync.

    They are of the last split if it changed: `changes` has how.
    `sync_s` runs from the slowest device's gradients until their sum is on all devices.
    `noise_scale` is in samples, with its 95 % interval; None if unknown.
    """

    epoch: int
    batches: tuple[int, ...]
    compute_s: tuple[float, ...]
    update_s: tuple[float, ...]
    sync_s: float
    noise_scale: float | None = None
    noise_scale_ci95: tuple[float, float] | None = None
    changes: tuple[SplitChange, ...] = ()

    @classmethod
    def of(
        cls,
        epoch: int,
        steps: Sequence[StampedStep],
        changes: Sequence[SplitChange] = (),
    ) -> EpochTimes:
        """The medians of an epoch's steps.

        Times are of the largest global batch only: a last batch may be smaller.
        """
        most = max(split.global_batch for _, split in steps)
        last = [split for _, split in steps if split.global_batch == most][-1]
        times = [step.times for step in steps if step.split == last]
        noise = noise_scale(norms_of(steps))
        return cls(
            epoch,
            last.batches,
            _medians([step.compute_s for step in times]),
            _medians([step.update_s for step in times]),
            statistics.median(step.sync_s for step in times),
            noise.value,
            noise.ci95,
            tuple(changes),
        )

    @property
    def busy_s(self) -> tuple[float, ...]:
        """cᵢ + uᵢ: each device's compute and update."""
        return tuple(map(sum, zip(self.compute_s, self.update_s, strict=True)))

    @property
    def wait_s(self) -> tuple[float, ...]:
        """maxⱼ (cⱼ + uⱼ) − cᵢ − uᵢ: how long each device waits for the slowest."""
        slowest_s = max(self.busy_s)
        return tuple(slowest_s - own_s for own_s in self.busy_s)

    @property
    def imbalance(self) -> float:
        """max (cᵢ + uᵢ) / mean (cᵢ + uᵢ); 1 is perfect."""
        return max(self.busy_s) * len(self.busy_s) / sum(self.busy_s)


def _medians(steps: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Each device's median over the steps."""
    return tuple(map(statistics.median, zip(*steps, strict=True)))
