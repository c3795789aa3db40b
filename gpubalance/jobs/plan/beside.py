"""The splits that a plan reports beside its own: the even one, others by global batch, and what
each is worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpubalance.planning.allocate import allocated
from gpubalance.planning.noise import efficiency
from gpubalance.planning.problem import Allocation, Problem, throughput
from gpubalance.results.plan import Goodput, SplitPrediction
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares

_MOST_DEVICES = 16  # each global batch costs one run of the solver
_GLOBAL_BATCHES = 24


def even_split(problem: Problem, split: Shares, sync_s: float) -> SplitPrediction | None:
    """The even split of that split's devices and global batch, or the largest equal shares that fit
    in one piece.

    None if the split has one device, or the devices hold less than a sample each.
    """
    loads = tuple(problem.loads[i] for i in split.used)
    limit = min(load.limit for load in loads)
    if len(loads) == 1 or not limit or split.global_batch < len(loads):
        return None
    even = Shares.even(split.global_batch, len(loads))
    if max(even.batches) > limit:
        even = Shares((limit,) * len(loads))
    parts = zip(loads, even.batches, strict=True)
    busy_s = max(load.compute_s(batch, batch) + load.update_s for load, batch in parts)
    return _foretold(even, sync_s + busy_s)


def best_at(
    problem: Problem, used: Sequence[int], global_batch: int | None, split: Shares
) -> SplitPrediction | None:
    """The fastest split of a global batch over the `used` devices, without micro-batches.

    None if that is unknown or the global batch of `split`, or if the devices can't take it. If the
    problem's multiple does not divide it, their greatest common divisor replaces that.
    """
    if global_batch in (None, split.global_batch):
        return None
    asked = replace(
        _of_some(problem, used),
        multiple=math.gcd(problem.multiple, global_batch),
        global_batch=global_batch,
        max_global_batch=None,
        micro_batches=1,
    )
    best = allocated(asked)
    return _foretold(best.split, best.step_time_s) if best else None


def _of_some(problem: Problem, devices: Sequence[int]) -> Problem:
    """The problem of some of its devices alone, numbered anew."""
    loads = tuple(problem.loads[device] for device in devices)
    return replace(problem, loads=loads, sync=problem.sync.within(devices))


def _foretold(split: Shares, step_s: float) -> SplitPrediction:
    return SplitPrediction(
        batches=split.batches,
        micro_batches=split.micro_batches if split.accumulates else None,
        step_time_s=step_s,
        throughput=split.global_batch / step_s,
    )


def by_global_batch(problem: Problem) -> Iterator[SplitPrediction]:
    """The fastest split at each of some global batches, a quarter of an octave apart, up to the
    largest.
    """
    if problem.global_batch is not None or len(problem.loads) > _MOST_DEVICES:
        return
    most = problem.micro_batches * sum(load.limit for load in problem.loads)
    most = min(most, problem.max_global_batch or most)
    steps = {
        int(most / 2 ** (step / 4)) // problem.multiple * problem.multiple
        for step in range(_GLOBAL_BATCHES)
    }
    for total in sorted(steps - {0}):
        wanted = replace(
            problem, global_batch=total, max_global_batch=None, within=0.0, objective=throughput
        )
        best = allocated(wanted)
        if best is not None:
            yield _foretold(best.split, best.step_time_s)


def by_goodput(
    problem: Problem,
    found: Allocation,
    even: SplitPrediction | None,
    devices: Sequence[Device],
    noise_scale: float,
) -> Iterator[Goodput]:
    """What the chosen split, the one with the most samples/s, the even split and the best device
    alone are worth.
    """

    def worth(name: str, batches: Sequence[int], rate: float) -> Goodput:
        """The record of a split that gives `rate` samples/s."""
        each = efficiency(sum(batches), noise_scale)
        return Goodput(
            of=name,
            batches=tuple(batches),
            global_batch=sum(batches),
            throughput=rate,
            efficiency=each,
            goodput=rate * each,
        )

    yield worth("chosen", found.split.batches, found.throughput)
    fastest = allocated(replace(problem, objective=throughput))
    if fastest is not None and fastest.split != found.split:
        yield worth("most samples/s", fastest.split.batches, fastest.throughput)
    if even is not None:
        yield worth("even", even.batches, even.throughput)
    alone = [
        (problem.value(best), device.label, best)
        for number, (load, device) in enumerate(zip(problem.loads, devices, strict=True))
        if load.limit >= problem.multiple
        and (best := allocated(replace(_of_some(problem, [number]), global_batch=None)))
        and len(devices) > 1
    ]
    if alone:
        _, label, best = max(alone, key=lambda one: one[0])
        yield worth(f"{label} alone", best.split.batches, best.throughput)
