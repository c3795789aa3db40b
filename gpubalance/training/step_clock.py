"""What steps take beside the times that their stamps say, by the clock."""

from __future__ import annotations

from dataclasses import replace

from gpubalance.planning.step_times import StepTimes
from gpubalance.training.epoch_times import StampedStep


class StepClock:
    """What steps take by the clock, beside what their stamps say of devices and sync.

    That is the host's work, a wait for data, or kernels that the next step's overlap.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begins another training."""
        self._rest_s = 0.0
        self.pause()

    def pause(self) -> None:
        """What comes before the next step, as at an epoch's end, is no part of it."""
        self._last: tuple[int, StampedStep] | None = None

    def times_of(self, number: int, step: StampedStep) -> StepTimes:
        """The times of the step of that number, and the rest of each step since the last stamped.

        It is the last that is known if there is none of this split since the pause.
        """
        times = step.times
        if self._last is not None:
            last_number, last = self._last
            if last.split == step.split:
                each_s = (step.summed_s - last.summed_s) / (number - last_number)
                self._rest_s = each_s - times.step_time_s
        self._last = number, step
        return replace(times, rest_s=self._rest_s)
