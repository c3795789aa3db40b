"""When a split that trains should change, by the steps that were timestamped so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import add, mul, truediv

from gpubalance.numbers.stats import median, spread, t95
from gpubalance.planning.allocate import allocated
from gpubalance.planning.fixed_costs import FixedCosts
from gpubalance.planning.model import Curve
from gpubalance.planning.parts import StepTimes, parts_of
from gpubalance.planning.problem import Allocation, Load, Problem
from gpubalance.settings.batch_split import BatchSplit

# How many times as fast another split must surely be.
_WORTH = 1.02
# How many of the latest steps the rule looks at: odd numbers, as the median of an even number may
# lie between two speeds.
_WINDOWS = (5, 9, 17, 33, 65, 129, 257)
# The rule looks again and again, so a time may be off by this many half-widths of a 95 % interval.
_HALF_INTERVALS = 2.0
_FEWEST = 8  # steps that show how much a device's times vary
# What a change made of each device's time is learnt of so many steps before and after it: those
# further away may be of another speed.
_NEAR = _WINDOWS[:3]
_MOVED = 0.05  # as for `balance`, by what part a time differs at another speed


@dataclass(frozen=True)
class SplitChange:
    """A split to change to after a step: `gain` times as fast as the old one, as far as is known.

    `slowdown` has each device's compute time in the old split over what it took there before.
    """

    step: int
    before: BatchSplit
    after: BatchSplit
    gain: float
    slowdown: tuple[float, ...]


def _nothing() -> float:
    """What a change costs before one was made."""
    return 0.0


class Rebalancer:
    """Takes the stamped steps of a training, and says when its split should change, and to what.

    A split is followed by the best one of the same global batch, by `allocate`, once the latest
    steps show that it is at least 2 % faster, wherever the devices' times are within twice their
    95 % intervals. Only steps of the present split count, and of these the fewest that show it: so
    old times are forgotten by themselves. A change must save more than the last one cost, over the
    steps that are left; if these are unknown, over as many as the present split has lasted.

    What another split would take is computed by `FixedCosts`.

    `limits` are the most samples that each device takes at a time, None if unknown. All processes
    of a cluster get the same steps, and come to the same splits.
    """

    def __init__(
        self,
        limits: Sequence[int | None],
        multiple: int = 1,
        fixed_samples: Sequence[float | None] = (),
    ) -> None:
        """Batches are multiples of `multiple` if the global batch is.

        `fixed_samples` has each device's f of `FixedCosts` by a plan, None if unknown.
        """
        self._limits = limits
        self._multiple = multiple
        self._costs = FixedCosts(fixed_samples or [None] * len(limits))
        self._steps_left: int | None = None
        self._cost_s: Callable[[], float] = _nothing
        self._accumulates = False  # whether devices may take several micro-batches
        # Each device's part of the compute over its median, in steps of former splits.
        self._seen_variations: deque[tuple[float, ...]] = deque(maxlen=_WINDOWS[-2])
        self.begin()

    def begin(self) -> None:
        """Begins another training, whose batches may have another size."""
        # Of the present split
        self._steps: deque[StepTimes] = deque(maxlen=_WINDOWS[-1])
        self._count = 0  # of all of these, the latest or not
        self._since = 0  # the number of the first of these
        # The last of the split before
        self._before: deque[StepTimes] = deque(maxlen=_NEAR[-1])
        self._patience = 0  # stamped steps before the next change
        self._first: BatchSplit | None = None
        # Each device's compute in the first split over that in the old and in the present one.
        self._first_over_old = self._first_over_now = [1.0] * len(self._limits)
        self._took_s = self._in_first_s = 0.0

    @property
    def gain(self) -> float | None:
        """What the first split would have taken since it was changed, over what was taken.

        None if it was not changed, or too few steps were stamped since.
        """
        if not self._took_s:
            return None
        return self._in_first_s / self._took_s

    def note(
        self,
        number: int,
        step: StepTimes,
        *,
        steps_left: int | None = None,
        cost_s: Callable[[], float] = _nothing,
    ) -> SplitChange | None:
        """Takes the next stamped step; returns the change that is worth it now.

        `steps_left` are those of this training after the step, None if unknown. `cost_s` gives the
        seconds that the last change cost. It is asked in the same steps of all processes, and must
        give the same in all.
        """
        if not self._counts(step):
            return None
        if not self._steps:
            self._since = number
        self._steps_left = steps_left
        self._cost_s = cost_s
        self._steps.append(step)
        self._count += 1
        steps = tuple(self._steps)
        if self._before and self._count in _NEAR:
            self._learn(tuple(self._before)[-self._count :], steps)
        if self._before and len(steps) >= _WINDOWS[0]:
            self._compare_with_first(step)
        for count in _WINDOWS:
            # A long window is looked at once an eighth of it is new.
            if self._count >= count and self._count % max(1, count // 8) == 0:
                change = self._change(number, steps[:-count], steps[-count:])
                if change is not None:
                    return change
        return None

    def _counts(self, step: StepTimes) -> bool:
        """Whether a step is of the present split: not of a last, smaller batch, nor of before."""
        split = step.split
        known = self._steps or self._before
        if known and split.global_batch < known[-1].split.global_batch:
            return False
        if not self._steps and known and split == known[-1].split:
            self._before.append(step)
            return False
        is_other = self._steps and split != self._steps[-1].split
        has_grown = known and split.global_batch > known[-1].split.global_batch
        if is_other or has_grown:
            self.begin()
        if self._first is None:
            self._first = split
            self._accumulates |= split.accumulates
            self._costs.may_try = not self._accumulates
        return True

    def _change(
        self, number: int, earlier: Sequence[StepTimes], latest: Sequence[StepTimes]
    ) -> SplitChange | None:
        now = StepTimes.of(latest)
        if now.step_time_s < _WORTH * self._min_step_s(now):
            return None
        best = self._best(now)
        if best is None:
            return None
        gain = now.step_time_s / (best.step_time_s + now.common_s)
        if gain < _WORTH and self._costs.may_try:
            return None
        unsure = self._unsure(earlier, latest)
        if unsure is None:
            return None
        then = StepTimes.of(earlier) if len(earlier) >= _WINDOWS[0] else now
        slowdown = tuple(map(truediv, now.compute_s, then.compute_s))
        if len(earlier) >= _NEAR[-1] and _has_moved(slowdown, unsure, surely=True):
            self._costs.may_try = True
        if gain < _WORTH or _min_gain(now, best, unsure) < _WORTH:
            return None
        if not self._pays(number, now.step_time_s * (1 - 1 / gain)):
            return None
        if _has_moved(slowdown, unsure):
            self._patience = 0
        # Of a size that is slower than foretold, each time twice as many steps are waited for.
        elif self._before and now.step_time_s > StepTimes.of(self._before).step_time_s:
            self._patience = 2 * max(self._patience, _WINDOWS[0])
        elif self._count < self._patience:
            return None
        self._seen_variations += [*_variations(earlier), *_variations(latest)]
        # The median shows another speed as soon as half of the steps have it, the latest ones.
        self._before.clear()
        self._before.extend(latest[len(latest) // 2 :])
        self._first_over_old = self._first_over_now
        self._steps.clear()
        self._count = 0
        return SplitChange(number, now.split, best.split, gain, slowdown)

    def _pays(self, number: int, saved_s: float) -> bool:
        """Whether a change that saves so much of each step saves more than the last one cost."""
        steps = self._steps_left
        if steps is None:
            steps = number - self._since
        return saved_s * steps > self._cost_s()

    def _min_step_s(self, now: StepTimes) -> float:
        """What a step takes if all devices are equally busy, in parts of samples if need be."""
        fewest = 0 if self._accumulates else 1  # micro-batches
        samples = float(now.split.global_batch)
        rates = 0.0
        for device, update_s in enumerate(now.update_s):
            size = self._largest(now.split, device)
            min_s = self._costs.compute_s(now, device, 0, fewest)
            rate = size / (self._costs.compute_s(now, device, size, 1) - min_s)
            samples += rate * (min_s + update_s)
            rates += rate
        return samples / rates + now.common_s

    def _largest(self, split: BatchSplit, device: int) -> int:
        """The most samples that a device takes at a time; what trains fits."""
        limit = self._limits[device] or split.global_batch
        return max(limit, split.micro_batches[device])

    def _best(self, now: StepTimes) -> Allocation | None:
        """The planner's best split, without sync."""
        split = now.split
        is_multiple = split.global_batch % self._multiple == 0
        multiple = self._multiple if is_multiple else 1
        sizes = []
        loads = []
        for device in range(len(split.batches)):
            size = self._largest(split, device) // multiple * multiple
            if not size:
                return None
            sizes.append(size)
            loads.append(self._load(now, device, size, multiple))
        best = allocated(
            Problem(tuple(loads), multiple=multiple, global_batch=split.global_batch)
        )
        if best is None:
            return None
        micro_batches = []
        for batch, size in zip(best.split.batches, sizes, strict=True):
            count = -(-batch // size)
            micro_batches.append(-(-batch // (count * multiple)) * multiple)
        whole = BatchSplit(best.split.batches, tuple(micro_batches))
        return replace(best, split=whole)

    def _load(self, now: StepTimes, device: int, size: int, multiple: int) -> Load:
        """A device for the planner: all its micro-batches, up to this size, are one batch."""
        # A device that gets more samples may need more micro-batches.
        maximum = 2 * max(now.split.counts) if self._accumulates else 1
        times_s = {}
        for count in range(1, maximum + 1):
            for batch in ((count - 1) * size + multiple, count * size):
                times_s[batch] = self._costs.compute_s(now, device, batch, count)
        curve = Curve(tuple(times_s), tuple(times_s.values()))
        return Load(curve, maximum * size, now.update_s[device], required=True)

    def _unsure(
        self, earlier: Sequence[StepTimes], latest: Sequence[StepTimes]
    ) -> list[float] | None:
        """By what part each device's time in the latest steps may be another; None if unknown."""
        varied = [*self._seen_variations, *_variations(earlier), *_variations(latest)]
        unsure = []
        # What varied long ago, as a card that slowed, is no doubt of what is steady now.
        for parts in zip(*varied[-_WINDOWS[-1] :], strict=True):
            known = spread(parts)
            if known is None or (known.error and len(parts) < _FEWEST):
                return None
            error = known.error * math.sqrt(len(parts) / len(latest))
            unsure.append(_HALF_INTERVALS * t95(known.freedom) * error)
        return unsure

    def _learn(self, before: Sequence[StepTimes], steps: Sequence[StepTimes]) -> None:
        """Learns what the change of the split has made of each device's time."""
        old = StepTimes.of(before)
        now = StepTimes.of(steps)
        changed = map(truediv, old.compute_s, now.compute_s)
        self._first_over_now = list(map(mul, self._first_over_old, changed))
        if now.split == self._first:
            self._first_over_now = [1.0] * len(self._limits)
        self._costs.learn(before, steps)

    def _compare_with_first(self, step: StepTimes) -> None:
        """Counts what a step takes, and what it would have taken in the first split."""
        computes_s = map(mul, step.compute_s, self._first_over_now)
        self._took_s += step.step_time_s
        self._in_first_s += max(map(add, computes_s, step.update_s)) + step.common_s


def _min_gain(now: StepTimes, best: Allocation, unsure: Sequence[float]) -> float:
    """How many times as fast the best split is at least, if times are known but for these parts."""
    gains = []
    for slowest, new_s in enumerate(best.compute_s):
        old_s = 0.0
        for device, compute_s in enumerate(now.compute_s):
            sign = 1 if device == slowest else -1
            min_s = compute_s * math.exp(sign * unsure[device])
            old_s = max(old_s, min_s + now.update_s[device])
        max_s = new_s * math.exp(unsure[slowest]) + now.update_s[slowest]
        gains.append((old_s + now.common_s) / (max_s + now.common_s))
    return min(gains)


def _has_moved(
    slowdown: Sequence[float], unsure: Sequence[float], *, surely: bool = False
) -> bool:
    """Whether a device has another speed; `surely`, if a try may cost something."""
    parts = 2 if surely else 1
    pairs = zip(slowdown, unsure, strict=True)
    return any(abs(ratio - 1) > _MOVED + parts * part for ratio, part in pairs)


def _variations(steps: Sequence[StepTimes]) -> list[tuple[float, ...]]:
    """In each step, each device's part of the compute over its median."""
    parts = [parts_of(step) for step in steps]
    usual = [median(of_device) for of_device in zip(*parts, strict=True)]
    varied = []
    for of_step in parts:
        pairs = zip(of_step, usual, strict=True)
        varied.append(tuple(part / middle for part, middle in pairs))
    return varied
