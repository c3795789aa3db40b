"""Where a step's time goes, from the stamps of some steps, and what rare slow steps add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpubalance.numbers.stats import median
from gpubalance.settings.batch_split import BatchSplit

SLOW = 1.5  # times the median
# Of a step: timings longer by this much contain a slow step, even if no single step is slow.
_CLEARLY = 0.7


@dataclass(frozen=True)
class DeviceTimes:
    """What each device works in a step, in seconds: compute and update, in device order."""

    compute_s: tuple[float, ...]
    update_s: tuple[float, ...]

    @property
    def busy_s(self) -> tuple[float, ...]:
        """cᵢ + uᵢ: each device's compute and update."""
        return _sums(self.compute_s, self.update_s)

    @property
    def imbalance(self) -> float:
        """See `imbalance_of`."""
        return imbalance_of(self.busy_s)


def imbalance_of(busy_s: Sequence[float]) -> float:
    """max (cᵢ + uᵢ) / mean (cᵢ + uᵢ); 1 is perfect."""
    return max(busy_s) * len(busy_s) / sum(busy_s)


@dataclass(frozen=True)
class StepParts(DeviceTimes):
    """Where a step's time goes, in seconds, by replica.

    Compute + update + wait + sync + input wait − excess is the step time. `excess_s` is how much
    longer the stamped steps' straggler took than a whole unstamped step: 0 unless measuring slows
    the step down.
    """

    wait_s: tuple[float, ...]
    sync_s: float
    input_wait_s: float
    excess_s: float


def split_step(
    step_time_s: float,
    computes: Sequence[Sequence[float]],
    updates: Sequence[Sequence[float]],
    input_wait_s: float,
    middle: Callable[[Sequence[float]], float] = median,
) -> StepParts:
    """Divides a step of `step_time_s` by the compute and update times of steps ([step][replica]).

    At least one step is needed. Replica i computes cᵢ and updates uᵢ, the `middle` over steps; m is
    the middle of the slowest replica's sum of both. Then wᵢ = m − cᵢ − uᵢ and s = T − input wait −
    m. (m, not max (cᵢ + uᵢ): with noise another replica is the slowest in each step, and the others
    wait for it.) A single replica neither waits nor syncs: the rest of its step counts as compute.
    """
    compute_s = tuple(map(middle, zip(*computes, strict=True)))
    update_s = tuple(map(middle, zip(*updates, strict=True)))
    if len(compute_s) == 1:
        compute_s = (max(*compute_s, step_time_s - input_wait_s - update_s[0]),)
    busy_s = _sums(compute_s, update_s)
    barrier_s = max(busy_s)
    if len(busy_s) > 1:
        slowest_s = [max(_sums(*step)) for step in zip(computes, updates, strict=True)]
        barrier_s = max(middle(slowest_s), barrier_s)
    left_s = step_time_s - input_wait_s - barrier_s
    return StepParts(
        compute_s=compute_s,
        update_s=update_s,
        wait_s=tuple(barrier_s - own_s for own_s in busy_s),
        sync_s=max(0.0, left_s),
        input_wait_s=input_wait_s,
        excess_s=max(0.0, -left_s),
    )


def _sums(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def slow_steps(steps_s: Sequence[float]) -> int:
    """How many of the single steps took over 1.5 times their median."""
    if not steps_s:
        return 0
    usual_s = median(steps_s)
    return sum(step_s > SLOW * usual_s for step_s in steps_s)


def slow_time(timings_s: Sequence[float], size: int, steps_s: Sequence[float]) -> float:
    """Seconds by which slow steps lengthen the median of `timings_s`, means of `size` steps each.

    A median of single steps ignores them. A median of means does not: it rises by a whole slow step
    over `size` when half of the timings contain one more, which can't be predicted. So all by which
    it exceeds the median of the single `steps_s` is attributed to slow steps. It is 0 if nothing
    shows one: none of `steps_s` is slow, and `size` steps of a usual timing take at most 0.7 of a
    step longer than `size` steps of the shortest timing or `size` usual single ones, whichever is
    longer. It is also 0 for timings of one step each, whatever late stamps show of a few others.
    """
    if size == 1:
        return 0.0
    usual_s = median(steps_s)
    timed_s = median(timings_s)
    above_s = timed_s - max(usual_s, min(timings_s))
    if slow_steps(steps_s) or size * above_s > _CLEARLY * usual_s:
        return max(0.0, timed_s - usual_s)
    return 0.0


@dataclass(frozen=True)
class StepTimes(DeviceTimes):
    """A step's seconds, or the medians of several: each device's compute and update, and sync.

    The rest is what a step takes beside them, by the clock: the host's work, a wait for data.
    """

    split: BatchSplit
    sync_s: float
    rest_s: float = 0.0

    @classmethod
    def median_of(cls, steps: Sequence[StepTimes]) -> StepTimes:
        """The medians of some steps of one split.

        A device's compute is the median total of all devices × the device's median share. What
        makes a step longer for all devices, as longer samples do, changes no share.
        """
        totals_s = [sum(step.compute_s) for step in steps]
        total_s = median(totals_s)
        computes_s = [
            total_s * median(shares)
            for shares in zip(*map(compute_shares, steps), strict=True)
        ]
        updates_s = map(median, zip(*(step.update_s for step in steps), strict=True))
        sync_s = median([step.sync_s for step in steps])
        rest_s = median([step.rest_s for step in steps])
        return cls(tuple(computes_s), tuple(updates_s), steps[-1].split, sync_s, rest_s)

    @property
    def step_time_s(self) -> float:
        """max (cᵢ + uᵢ) + sync + rest."""
        return max(self.busy_s) + self.common_s

    @property
    def common_s(self) -> float:
        """Sync and rest: what all devices wait for, however they share a batch."""
        return self.sync_s + self.rest_s


def compute_shares(step: StepTimes) -> tuple[float, ...]:
    """Each device's compute as a fraction of all devices'."""
    total_s = sum(step.compute_s)
    return tuple(compute_s / total_s for compute_s in step.compute_s)
