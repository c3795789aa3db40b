"""When a split that trains should change, by the steps that were timestamped so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import add, mul, truediv

from gpubalance.numbers.stats import median, spread, t95
from gpubalance.planning.allocate import allocate_or_none
from gpubalance.planning.model import Curve, FixedCosts
from gpubalance.planning.parts import StepTimes, compute_shares
from gpubalance.planning.problem import Allocation, Load, Problem
from gpubalance.settings.batch_split import BatchSplit

# The smallest gain worth a change, a ratio of step times: old / new.
_WORTH_A_CHANGE = 1.02
# A change is looked for in this many of the latest steps, each number in turn. They are odd because
# the median of an even number of steps may lie between two speeds.
_WINDOWS = (5, 9, 17, 33, 65, 129, 257)
# Frequent looks find false alarms, so a compute time may be off by this many half-widths of its
# 95 % interval.
_HALF_INTERVALS = 2.0
_MIN_STEPS = 8  # fewer steps don't show how much a device's times vary
# The effect of a change is learned after 5, 9 and 17 steps of the new split. They are compared with
# the same number of steps from before the change, or with those that were kept if these are fewer.
# Steps further away may be at another speed.
_LEARNED_FROM = _WINDOWS[:3]
# A device is at another speed if its time differs by more than this fraction (as in `balance`).
_OTHER_SPEED = 0.05


@dataclass(frozen=True)
class SplitChange:
    """A split to change to after step number `step`.

    `gain` is the predicted ratio of step times, old / new. `slowdown` has, for each device, its
    latest / its earlier compute time, both in the old split.
    """

    step: int
    before: BatchSplit
    after: BatchSplit
    gain: float
    slowdown: tuple[float, ...]


def _nothing() -> float:
    """The cost of a change in seconds, before any was made."""
    return 0.0


class Rebalancer:
    """Takes the stamped steps of a training, and says when its split should change, and to what.

    The new split is the planner's best one (`allocate`) of the same global batch. Compute times are
    predicted by `FixedCosts`: b samples in k micro-batches take a device β·(b + k·f) seconds, where
    f is the fixed cost of a micro-batch, in samples. A step also has `common_s`, which is taken to
    be the same in all splits: its sync and its rest (the host's work, waits for data). The new
    split must
    - be at least 2 % faster, even if each compute time is off by two half-widths of its 95 %
      interval, in either direction. The latest 5 steps of the present split are looked at, then the
      latest 9, …, 257: the first of these windows that shows the gain decides. So old times are
      forgotten;
    - save more than the last change cost, over the steps that are left; if the number of steps left
      is unknown, over as many as the present split has lasted;
    - wait for the back-off: the first change that made steps slower sets the back-off to 10 stamped
      steps, each further such change doubles it, and a device's new speed ends it.

    All processes of a cluster get the same steps, and come to the same splits.
    """

    def __init__(
        self,
        limits: Sequence[int | None],
        multiple: int = 1,
        fixed_samples: Sequence[float | None] = (),
    ) -> None:
        """Batches are multiples of `multiple` if the global batch is.

        `limits` has the most samples that each device takes at a time, None if unknown.
        `fixed_samples` has each device's f by a plan: how many samples take as long as the fixed
        cost of a micro-batch, None if unknown.
        """
        self._limits = limits
        self._multiple = multiple
        self._costs = FixedCosts(fixed_samples or [None] * len(limits))
        self._steps_left: int | None = None
        self._cost_s: Callable[[], float] = _nothing
        # Whether devices may take several micro-batches: once a training has begun with several
        self._may_accumulate = False
        # For each of the latest 129 steps in former splits, its `_variations`: each device's share
        # of compute over its median share, 1 if they are equal. `_uncertainty` uses them.
        self._former_variations: deque[tuple[float, ...]] = deque(maxlen=_WINDOWS[-2])
        self.begin()

    def begin(self) -> None:
        """Begins another training, whose batches may have another size."""
        # The latest steps of the present split
        self._steps: deque[StepTimes] = deque(maxlen=_WINDOWS[-1])
        self._steps_in_split = 0  # also those that `_steps` has dropped
        self._first_step_number = 0  # of the present split
        # Whether the split was changed, and no step of the new split has come yet
        self._awaits_new_split = False
        self._last_split: BatchSplit | None = None  # of the last step that counted
        # The last steps of the split before
        self._steps_before: deque[StepTimes] = deque(maxlen=_LEARNED_FROM[-1])
        self._back_off = 0  # stamped steps in a split before it may change
        self._first_split: BatchSplit | None = None
        # Each device's compute time: first split / previous split, and first split / present one
        self._ratio_first_to_previous = [1.0] * len(self._limits)
        self._ratio_first_to_present = [1.0] * len(self._limits)
        # Since the first change: measured seconds, and those the first split would have needed
        self._measured_s = self._in_first_split_s = 0.0

    @property
    def gain(self) -> float | None:
        """The speed-up over the first split since the first change, a ratio of times.

        None if the split was not changed, or too few steps were stamped since.
        """
        if not self._measured_s:
            return None
        return self._in_first_split_s / self._measured_s

    def note(
        self,
        number: int,
        step: StepTimes,
        *,
        steps_left: int | None = None,
        cost_s: Callable[[], float] = _nothing,
    ) -> SplitChange | None:
        """Takes the next stamped step; returns the change that is worth it now.

        training/monitor.py calls this. `steps_left` are this training's steps after the stamped
        one, None if unknown. `cost_s()` returns the seconds that the last change cost. All
        processes call `note` for the same steps, and `cost_s()` must return the same seconds in
        all of them.
        """
        if not self._admit(step):
            return None
        if not self._steps:
            self._first_step_number = number
        self._steps_left = steps_left
        self._cost_s = cost_s
        self._steps.append(step)
        self._steps_in_split += 1
        steps = tuple(self._steps)
        if self._steps_before:
            # Learn at the 5th, 9th and 17th step after the change.
            if self._steps_in_split in _LEARNED_FROM:
                before = tuple(self._steps_before)[-self._steps_in_split :]
                self._learn(before, steps)
            if self._steps_in_split >= _WINDOWS[0]:
                self._add_to_gain(step)
        for count in _WINDOWS:
            # Recheck a window every count/8 new steps.
            is_due = self._steps_in_split % max(1, count // 8) == 0
            if self._steps_in_split >= count and is_due:
                earlier, latest = steps[:-count], steps[-count:]
                change = self._worthwhile_change(number, earlier, latest)
                if change is not None:
                    self._leave_split(earlier, latest)
                    return change
        return None

    def _admit(self, step: StepTimes) -> bool:
        """Decides whether the step counts as one of the present split, and returns that.

        - A step with fewer samples than the last one does not count: an epoch's last, smaller
          batch.
        - A step with the old split after a change does not count: its batch was dispatched before
          the change. The step is kept with the old split's steps.
        - Any other step counts. A step with more samples, or with another split although the split
          was not changed, begins another training.
        """
        split = step.split
        last_split = self._last_split
        if last_split is not None:
            if split.global_batch < last_split.global_batch:
                return False
            if self._awaits_new_split and split == last_split:
                self._steps_before.append(step)
                return False
            is_unexpected = split != last_split and not self._awaits_new_split
            if is_unexpected or split.global_batch > last_split.global_batch:
                self.begin()
        if self._first_split is None:
            self._first_split = split
            self._may_accumulate |= split.accumulates
            # While cautious, `FixedCosts` takes a device's further micro-batch of unknown cost to
            # last as long as the others, so that no split is tried that may be slower. Without
            # accumulation no micro-batch is ever added, so no caution is needed.
            self._costs.is_cautious = self._may_accumulate
        self._last_split = split
        self._awaits_new_split = False
        return True

    def _worthwhile_change(
        self, number: int, earlier: Sequence[StepTimes], latest: Sequence[StepTimes]
    ) -> SplitChange | None:
        """The change that the latest steps of the split show to be worth it, or None.

        `earlier` are the steps of the same split before `latest`.
        """
        now = StepTimes.median_of(latest)
        # A cheap bound spares the solver in most steps.
        if now.step_time_s < _WORTH_A_CHANGE * self._min_step_s(now):
            return None
        best = self._best(now)
        if best is None:
            return None
        if self._costs.is_cautious:
            self._end_caution_at_other_speed(now, earlier, latest)
        gain = now.step_time_s / (best.step_time_s + now.common_s)
        if gain < _WORTH_A_CHANGE:
            return None
        uncertainty = self._uncertainty(earlier, latest)
        if uncertainty is None:
            return None
        if _min_gain(now, best, uncertainty) < _WORTH_A_CHANGE:
            return None
        saved_s = now.step_time_s * (1 - 1 / gain)
        if not self._saves_more_than_it_costs(number, saved_s):
            return None
        slowdown = _slowdown(now, earlier)
        is_other_speed = _has_other_speed(slowdown, uncertainty)
        must_wait = self._update_back_off(now, is_other_speed=is_other_speed)
        if must_wait:
            return None
        return SplitChange(number, now.split, best.split, gain, slowdown)

    def _end_caution_at_other_speed(
        self, now: StepTimes, earlier: Sequence[StepTimes], latest: Sequence[StepTimes]
    ) -> None:
        """Ends the caution about further micro-batches if a device's speed has clearly changed.

        From the next look on, splits with more micro-batches are tried too, though the cost of a
        further micro-batch is not known.
        """
        if len(earlier) < _LEARNED_FROM[-1]:
            return
        uncertainty = self._uncertainty(earlier, latest)
        if uncertainty is None:
            return
        if _has_other_speed(_slowdown(now, earlier), uncertainty, clearly=True):
            self._costs.is_cautious = False

    def _leave_split(
        self, earlier: Sequence[StepTimes], latest: Sequence[StepTimes]
    ) -> None:
        """Keeps what the next split needs of this one's steps, and forgets the others."""
        self._former_variations += [*_variations(earlier), *_variations(latest)]
        self._steps_before.clear()
        # Only the later half: a median shows a new speed as soon as half of the steps have it, so
        # the earlier half may be at the old speed.
        self._steps_before.extend(latest[len(latest) // 2 :])
        self._ratio_first_to_previous = self._ratio_first_to_present
        self._steps.clear()
        self._steps_in_split = 0
        self._awaits_new_split = True

    def _update_back_off(self, now: StepTimes, *, is_other_speed: bool) -> bool:
        """Resets, doubles or leaves the back-off; returns whether the change must wait for it."""
        if is_other_speed:
            self._back_off = 0
            return False
        if self._steps_before:
            step_before_s = StepTimes.median_of(self._steps_before).step_time_s
            if now.step_time_s > step_before_s:
                # The last change was wrong: leave this split at once. The doubled back-off is for
                # the next split.
                self._back_off = 2 * max(self._back_off, _WINDOWS[0])
                return False
        return self._steps_in_split < self._back_off

    def _saves_more_than_it_costs(self, number: int, saved_s: float) -> bool:
        """Whether saving `saved_s` in each step saves more than the last change cost."""
        steps = self._steps_left
        if steps is None:  # as many as the split has lasted
            steps = number - self._first_step_number
        return saved_s * steps > self._cost_s()

    def _min_step_s(self, now: StepTimes) -> float:
        """A lower bound of the step time, as if samples could be divided.

        A device computes a full micro-batch of `size` samples in full_s seconds. In general it
        computes n samples in min_s + n / rate seconds, and then takes update_s.
        - With accumulation all micro-batches are taken to be full: min_s = 0, rate = size / full_s.
        - Without, min_s is the fixed cost of the only micro-batch: rate = size / (full_s - min_s).

        If samples can be divided, all devices can end at one time T. By T a device has done
        rate·(T - min_s - update_s) samples, and all devices together the global batch B. So
        T = (B + Σ rate·(min_s + update_s)) / Σ rate. The result is T + common_s.
        """
        min_micro_batches = 0 if self._may_accumulate else 1
        # Σ rate·T: what the devices would do by T without min_s and update_s
        samples = float(now.split.global_batch)
        rates = 0.0
        for device, update_s in enumerate(now.update_s):
            size = self._max_micro_batch(now.split, device)
            full_s = self._costs.compute_s(now, device, batch=size, count=1)
            min_s = self._costs.compute_s(now, device, batch=0, count=min_micro_batches)
            rate = size / (full_s - min_s)
            samples += rate * (min_s + update_s)
            rates += rate
        return samples / rates + now.common_s

    def _max_micro_batch(self, split: BatchSplit, device: int) -> int:
        """The most samples that a device takes at a time: at least its present ones, which fit."""
        limit = self._limits[device] or split.global_batch
        return max(limit, split.micro_batches[device])

    def _best(self, now: StepTimes) -> Allocation | None:
        """The planner's best split of the global batch, planned without `now.common_s`.

        None if there is no split, or if a device's limit is below the multiple.
        """
        split = now.split
        is_multiple = split.global_batch % self._multiple == 0
        multiple = self._multiple if is_multiple else 1
        max_sizes = []  # of each device's micro-batches
        loads = []
        for device in range(len(split.batches)):
            size = self._max_micro_batch(split, device) // multiple * multiple
            if not size:
                return None
            max_sizes.append(size)
            loads.append(self._load(now, device, size, multiple))
        best = allocate_or_none(
            Problem(tuple(loads), multiple=multiple, global_batch=split.global_batch)
        )
        if best is None:
            return None
        # The planner saw one batch a device. Cut it into the fewest micro-batches, as equal as
        # multiples allow. Every device is required, so `batch` is above 0 and `count` too.
        micro_batches = []
        for batch, max_size in zip(best.split.batches, max_sizes, strict=True):
            count = _ceil_div(batch, max_size)
            micro_batches.append(_ceil_div(batch, count * multiple) * multiple)
        return replace(best, split=BatchSplit(best.split.batches, tuple(micro_batches)))

    def _load(self, now: StepTimes, device: int, size: int, multiple: int) -> Load:
        """A device for the planner, in micro-batches of at most `size` samples.

        The planner sees all micro-batches of a step as one large batch. For each number of
        micro-batches the curve has two points, their fewest samples and their most: 1 and 100, 101
        and 200, … for a size of 100.
        """
        # A device that gets more samples may take twice as many micro-batches as any does now.
        max_count = 2 * max(now.split.counts) if self._may_accumulate else 1
        times_s = {}
        for count in range(1, max_count + 1):
            for batch in ((count - 1) * size + multiple, count * size):
                times_s[batch] = self._costs.compute_s(now, device, batch, count)
        curve = Curve(tuple(times_s), tuple(times_s.values()))
        limit = max_count * size
        return Load(curve, limit, now.update_s[device], required=True)

    def _uncertainty(
        self, earlier: Sequence[StepTimes], latest: Sequence[StepTimes]
    ) -> list[float] | None:
        """Relative uncertainty of each device's median compute time in the latest steps.

        It is two half-widths of the 95 % interval: 0.02 is ± 2 %. None if it is unknown.
        """
        present = [*_variations(earlier), *_variations(latest)]
        variations = [*self._former_variations, *present]
        uncertainty = []
        # Only the latest 257: old instability says nothing about a card that is steady now.
        for of_device in zip(*variations[-_WINDOWS[-1] :], strict=True):
            # The relative standard error of the median variation, and its degrees of freedom
            estimate = spread(of_device)
            if estimate is None:
                return None
            # Without an error the devices are simulated: few steps are enough.
            if estimate.error and len(of_device) < _MIN_STEPS:
                return None
            # `estimate` is for the median of all variations. That of `latest`, which are fewer, is
            # less exact.
            error = estimate.error * math.sqrt(len(of_device) / len(latest))
            uncertainty.append(_HALF_INTERVALS * t95(estimate.freedom) * error)
        return uncertainty

    def _learn(self, before: Sequence[StepTimes], after: Sequence[StepTimes]) -> None:
        """Learns each device's fixed cost, and its compute time's ratio to the first split's."""
        old = StepTimes.median_of(before)
        now = StepTimes.median_of(after)
        old_over_now = map(truediv, old.compute_s, now.compute_s)
        first_over_now = list(map(mul, self._ratio_first_to_previous, old_over_now))
        if now.split == self._first_split:
            first_over_now = [1.0] * len(self._limits)
        self._ratio_first_to_present = first_over_now
        self._costs.learn(before, after)

    def _add_to_gain(self, step: StepTimes) -> None:
        """Adds the step's seconds, and those that it would have taken in the first split."""
        in_first_split_s = map(mul, step.compute_s, self._ratio_first_to_present)
        busy_s = map(add, in_first_split_s, step.update_s)
        self._measured_s += step.step_time_s
        self._in_first_split_s += max(busy_s) + step.common_s


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _min_gain(now: StepTimes, best: Allocation, uncertainty: Sequence[float]) -> float:
    """The worst-case gain, old / new step time, if each compute time may be off either way.

    Two devices take 300 and 200 ms now, and would take 250 and 250 ms in the new split: a gain of
    300/250 = 1.2. With an uncertainty of 0.1 a device may take exp(-0.1) = 0.905 to exp(0.1) =
    1.105 times as long, by the same factor in both splits. If the first device takes the shortest
    and the second the longest, they take 271 and 221 ms now, and 226 and 276 ms in the new split: a
    gain of 271/276 = 0.98.

    In general the gain is least if the slowest device of the new split takes the longest, and all
    others the shortest. Which device will be the slowest is not known, so each is tried.
    """
    gains = []
    for slowest, new_compute_s in enumerate(best.compute_s):
        old_busy_s = []
        for device, compute_s in enumerate(now.compute_s):
            sign = 1 if device == slowest else -1
            possible_s = compute_s * math.exp(sign * uncertainty[device])
            old_busy_s.append(possible_s + now.update_s[device])
        max_new_s = new_compute_s * math.exp(uncertainty[slowest])
        new_busy_s = max_new_s + now.update_s[slowest]
        gains.append((max(old_busy_s) + now.common_s) / (new_busy_s + now.common_s))
    return min(gains)


def _slowdown(now: StepTimes, earlier: Sequence[StepTimes]) -> tuple[float, ...]:
    """Each device's compute time now over that of the earlier steps; 1 if these are too few."""
    earlier_times = now
    if len(earlier) >= _WINDOWS[0]:
        earlier_times = StepTimes.median_of(earlier)
    return tuple(map(truediv, now.compute_s, earlier_times.compute_s))


def _has_other_speed(
    slowdown: Sequence[float], uncertainty: Sequence[float], *, clearly: bool = False
) -> bool:
    """Whether a device's time has changed by more than 5 % plus its uncertainty.

    `clearly` takes twice the uncertainty, for an answer that costs something if it is wrong.
    """
    factor = 2 if clearly else 1
    for ratio, may_be_off in zip(slowdown, uncertainty, strict=True):
        if abs(ratio - 1) > _OTHER_SPEED + factor * may_be_off:
            return True
    return False


def _variations(steps: Sequence[StepTimes]) -> list[tuple[float, ...]]:
    """[step][device]: how a device's share of compute varies from step to step; 1 is usual.

    A share is a fraction of all devices' compute in the step, so that what slows all devices alike
    does not count. Here it is divided by the device's median share.
    """
    shares = [compute_shares(step) for step in steps]
    medians = [median(of_device) for of_device in zip(*shares, strict=True)]
    return [tuple(map(truediv, of_step, medians)) for of_step in shares]
