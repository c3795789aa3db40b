"""The splits that a plan reports beside its own, and what each is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpubalance.planning.allocate import allocate_or_none
from gpubalance.planning.noise import efficiency
from gpubalance.planning.problem import Allocation, Problem, throughput
from gpubalance.results.plan import Goodput, SplitPrediction
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device

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
    best = allocate_or_none(wanted)
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
        best = allocate_or_none(replace(free, global_batch=total))
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
    fastest = allocate_or_none(replace(problem, objective=throughput))
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
            best = allocate_or_none(
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
