"""What steps take beside the times that their stamps say, by the clock."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from gpubalance.numbers.stats import median
from gpubalance.planning.step_times import StepTimes
from gpubalance.training.epoch_times import StampedStep

_RECENT = 9  # rests that tell what it is where it can't be measured


class StepClock:
    """What steps take by the clock, beside what their stamps say of devices and sync.

    That is the host's work, and the wait for data.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begins another training."""
        self._rests_s: deque[float] = deque(maxlen=_RECENT)
        self.pause()

    def pause(self) -> None:
        """What comes before the next step, as at an epoch's end, is no part of it."""
        self._last: tuple[int, StampedStep] | None = None

    def times_of(self, number: int, step: StampedStep) -> StepTimes:
        """The times of the step of that number, and the rest of each step since the last stamped.

        It is the median of those known before if there is none of this split since the pause.
        """
        times = step.times
        rest_s = median(self._rests_s) if self._rests_s else 0.0
        if self._last is not None:
            last_number, last = self._last
            if last.split == step.split:
                each_s = (step.summed_s - last.summed_s) / (number - last_number)
                # A stamped step may be slower than those between.
                rest_s = max(0.0, each_s - times.step_time_s)
                self._rests_s.append(rest_s)
        self._last = number, step
        return replace(times, rest_s=rest_s)
