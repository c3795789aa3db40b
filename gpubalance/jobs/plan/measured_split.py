"""A split that was measured once or more: what it is worth, and how exactly that is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from gpubalance.numbers.stats import half_width, median
from gpubalance.planning.problem import Allocation, Objective, throughput
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.batch_split import BatchSplit

# Measurements of a split to tell it from another: on some machines that never succeeds.
_MOST = 3


@dataclass(frozen=True)
class MeasuredSplit:
    """A split as planned, and its measurements; a `Run` among them is a proof.

    Those before the number `since` are of another speed of its devices, and do not count.
    """

    planned: Allocation
    measurements: tuple[Measurement, ...]
    objective: Objective = throughput
    since: int = 0

    @property
    def current(self) -> tuple[Measurement, ...]:
        """Its measurements at the devices' present speed."""
        return self.measurements[self.since :]

    @property
    def run(self) -> Run | None:
        """Its latest proof, or None."""
        for measured in reversed(self.current):
            if isinstance(measured, Run):
                return measured
        return None

    @cached_property
    def value(self) -> float:
        """Its value by the objective, such as samples per second, over all its measurements.

        Without rare slow steps: they are no split's own, and no model predicts them.
        """
        return float(
            self.objective(self.planned.split.global_batch, median(self._step_times_s))
        )

    @cached_property
    def relative_half_width(self) -> float:
        """Half the 95 % interval of its step time, as a part of it."""
        return half_width(self._step_times_s) or 0.0

    @property
    def may_be_measured_again(self) -> bool:
        """Whether another measurement may still help."""
        return len(self.current) < _MOST

    def could_reach(self, value: float) -> bool:
        """Whether another measurement may show that it has this value."""
        maximum = (1 + self.relative_half_width) * self.value
        return self.may_be_measured_again and value < maximum

    @property
    def _step_times_s(self) -> list[float]:
        times_s = []
        for measured in self.current:
            usual_part = 1 - measured.slow_s / measured.step_time_s.median
            times_s += [usual_part * step_s for step_s in measured.step_time_s.samples]
        return times_s

    @property
    def as_measured(self) -> Allocation:
        """The split with the times of its proof, else of its latest measurement."""
        measured = self.run or self.current[-1]
        compute_s = [0.0] * len(self.planned.split.batches)
        for replica in measured.replicas:
            compute_s[replica.device] = replica.compute_s
        step_time_s = measured.step_time_s.median
        return replace(
            self.planned, compute_s=tuple(compute_s), step_time_s=step_time_s
        )


def split_over(measured: Measurement, devices: int) -> BatchSplit:
    """The split that was measured, over so many devices."""
    batches = [0] * devices
    micro_batches = [0] * devices
    for replica in measured.replicas:
        batches[replica.device] = replica.batch
        micro_batches[replica.device] = replica.micro_batch
    return BatchSplit(tuple(batches), tuple(micro_batches))
