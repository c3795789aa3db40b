"""What the stamped steps of an epoch say of each device."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpubalance.engine.step.points import COMPUTED, FINISHED, SUMMED, stamped_times
from gpubalance.planning.noise import Norms, noise_scale
from gpubalance.settings.shares import Shares

_POINTS = FINISHED + 1


class StampedStep(NamedTuple):
    """A step's seconds [replica, (began, computed, summed, finished)] and its split.

    To measure the noise, two more columns have its norms, unless each replica had the whole batch.
    """

    stamps: Any
    split: Shares


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

    @classmethod
    def of(cls, epoch: int, steps: Sequence[StampedStep]) -> EpochTimes:
        """The medians of an epoch's steps.

        Times are of the largest global batch only: a last batch may be smaller.
        """
        batches = max((split.batches for _, split in steps), key=sum)
        computes_s = []
        updates_s = []
        syncs_s = []
        for stamps, split in steps:
            if split.batches == batches:
                times = stamped_times(stamps)
                computes_s.append(times["compute_s"])
                updates_s.append(times["update_s"])
                syncs_s.append(float(stamps[:, SUMMED].max() - stamps[:, COMPUTED].max()))
        noise = noise_scale(norms_of(steps))
        return cls(
            epoch,
            batches,
            _medians(computes_s),
            _medians(updates_s),
            statistics.median(syncs_s),
            noise.value,
            noise.ci95,
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
