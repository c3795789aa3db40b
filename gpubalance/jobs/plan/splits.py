"""Splits and what they are worth: those that were measured, and those that a plan reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpubalance.numbers.stats import half_width, median
from gpubalance.planning.allocate import allocate_as_measured
from gpubalance.planning.noise import efficiency
from gpubalance.planning.problem import Allocation, Objective, Problem, throughput
from gpubalance.results.plan import Goodput, SplitPrediction
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device

# Measurements of a split to tell it from another: on some machines that never succeeds.
_MOST = 3


@dataclass(frozen=True)
class MeasuredSplit:
    """A split as planned, and its measurements; a `Run` among them is a proof.

    Measurements before the number `since` are of another speed of its devices: they don't count.
    """

    planned: Allocation
    measurements: tuple[Measurement, ...]
    objective: Objective = throughput
    since: int = 0

    @property
    def counted_measurements(self) -> tuple[Measurement, ...]:
        """The measurements that count, from the number `since` on."""
        return self.measurements[self.since :]

    @property
    def run(self) -> Run | None:
        """Its latest proof, or None."""
        for measured in reversed(self.counted_measurements):
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
        return len(self.counted_measurements) < _MOST

    def may_have(self, value: float) -> bool:
        """Whether its value may be this one, or a higher one, as exactly as it is known."""
        return value < (1 + self.relative_half_width) * self.value

    @property
    def _step_times_s(self) -> list[float]:
        times_s = []
        for measured in self.counted_measurements:
            usual_part = 1 - measured.slow_s / measured.step_time_s.median
            times_s += [usual_part * step_s for step_s in measured.step_time_s.samples]
        return times_s

    @property
    def as_measured(self) -> Allocation:
        """The split with the times of its proof, else of its latest measurement."""
        measured = self.run or self.counted_measurements[-1]
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


_MOST_DEVICES = 16  # each global batch costs one run of the solver
_GLOBAL_BATCHES = 24


def even_split(problem: Problem, split: BatchSplit) -> SplitPrediction | None:
    """The even split of that split's devices and global batch, in one piece a device.

    Where that does not fit, the largest equal shares that do. None if the split has one device, or
    the devices hold less than a sample each.
    """
    loads = [problem.loads[device] for device in split.used]
    limit = min(load.limit for load in loads)
    if len(loads) == 1 or not limit or split.global_batch < len(loads):
        return None
    even = BatchSplit.even(split.global_batch, len(loads))
    if max(even.batches) > limit:
        even = BatchSplit((limit,) * len(loads))
    computes_s = [0.0] * len(problem.loads)
    for device, batch in zip(split.used, even.batches, strict=True):
        computes_s[device] = problem.loads[device].compute_s(batch, batch)
    return _predicted(even, problem.step_time_s(computes_s))


def best_at(
    problem: Problem, used: Sequence[int], global_batch: int | None, split: BatchSplit
) -> SplitPrediction | None:
    """The fastest split of a global batch over the `used` devices, without micro-batches.

    None if that is unknown or the global batch of `split`, or if the devices can't take it. If the
    problem's multiple does not divide it, their greatest common divisor replaces that.
    """
    if global_batch is None or global_batch == split.global_batch:
        return None
    wanted = replace(
        _of_some(problem, used),
        multiple=math.gcd(problem.multiple, global_batch),
        global_batch=global_batch,
        max_global_batch=None,
        micro_batches=1,
    )
    best = allocate_as_measured(wanted)
    return _predicted(best.split, best.step_time_s) if best else None


def by_global_batch(problem: Problem) -> Iterator[SplitPrediction]:
    """The fastest split at each of some global batches up to the largest.

    They are a quarter of an octave apart.
    """
    if problem.global_batch is not None or len(problem.loads) > _MOST_DEVICES:
        return
    largest = problem.micro_batches * sum(load.limit for load in problem.loads)
    largest = min(largest, problem.max_global_batch or largest)
    totals = set()
    for step in range(_GLOBAL_BATCHES):
        total = int(largest / 2 ** (step / 4))
        totals.add(total // problem.multiple * problem.multiple)
    free = replace(
        problem, max_global_batch=None, micro_batch_tolerance=0.0, objective=throughput
    )
    for total in sorted(totals - {0}):
        best = allocate_as_measured(replace(free, global_batch=total))
        if best is not None:
            yield _predicted(best.split, best.step_time_s)


def by_goodput(
    problem: Problem,
    planned: Allocation,
    even: SplitPrediction | None,
    devices: Sequence[Device],
    noise_scale: float,
) -> Iterator[Goodput]:
    """What several splits are worth.

    The chosen one, the one with the most samples/s, the even split, and the best device alone.
    """
    yield _goodput("chosen", planned.split.batches, planned.throughput, noise_scale)
    fastest = allocate_as_measured(replace(problem, objective=throughput))
    if fastest is not None and fastest.split != planned.split:
        batches = fastest.split.batches
        yield _goodput("most samples/s", batches, fastest.throughput, noise_scale)
    if even is not None:
        yield _goodput("even", even.batches, even.throughput, noise_scale)
    alone = _best_alone(problem)
    if alone is not None:
        device, best = alone
        name = f"{devices[device].label} alone"
        yield _goodput(name, best.split.batches, best.throughput, noise_scale)


def _goodput(
    name: str, batches: Sequence[int], rate: float, noise_scale: float
) -> Goodput:
    """The record of a split that gives `rate` samples/s."""
    worth = efficiency(sum(batches), noise_scale)
    return Goodput(
        of=name,
        batches=tuple(batches),
        global_batch=sum(batches),
        throughput=rate,
        efficiency=worth,
        goodput=rate * worth,
    )


def _best_alone(problem: Problem) -> tuple[int, Allocation] | None:
    """The device that is worth the most alone, and what it does; None if there is but one."""
    if len(problem.loads) == 1:
        return None
    alone = []
    for device, load in enumerate(problem.loads):
        if load.limit >= problem.multiple:
            best = allocate_as_measured(
                replace(_of_some(problem, [device]), global_batch=None)
            )
            if best is not None:
                alone.append((device, best))
    return max(alone, key=lambda pair: problem.value(pair[1]), default=None)


def _of_some(problem: Problem, devices: Sequence[int]) -> Problem:
    """The problem of some of its devices alone, numbered anew."""
    loads = tuple(problem.loads[device] for device in devices)
    return replace(problem, loads=loads, sync=problem.sync.restricted_to(devices))


def _predicted(split: BatchSplit, step_s: float) -> SplitPrediction:
    return SplitPrediction(
        batches=split.batches,
        micro_batches=split.micro_batches if split.accumulates else None,
        step_time_s=step_s,
        throughput=split.global_batch / step_s,
    )
