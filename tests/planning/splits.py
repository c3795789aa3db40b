"""Draws problems for the solver, and finds their best splits by brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import (
    Allocation,
    Load,
    NoSplitError,
    Problem,
    throughput,
)
from gpubalance.planning.sync import Syncs
from gpubalance.settings.batch_split import pieces

# Sixty-fourths add up without rounding: unlike splits take exactly as long, so ties are real.
exact = st.integers(0, 40).map(lambda n: n / 64)
seconds = exact | st.floats(0, 0.5)


@st.composite
def lines(draw: st.DrawFn) -> Line:
    alpha = draw(seconds)
    beta = draw(seconds)
    return Line(alpha, beta if alpha + beta > 1e-3 else 0.01, 0.0)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Curves that are flat in places, and bend up and down.

    Some of the points that they go through may lie above later ones.
    """
    batches = sorted(draw(st.sets(st.integers(2, 24), min_size=1, max_size=5)))
    time = draw(st.integers(1, 40)) / 64
    times = [time]
    for _ in batches[1:]:
        later = st.just(times[-1] + draw(st.just(0.0) | seconds))
        times.append(draw(later | st.integers(1, 40).map(lambda n: n / 64)))
    if draw(st.booleans()):
        return Curve((1, *batches), (time / 2, *times))
    return Curve(tuple(batches), tuple(times))


def loads(largest: int, minimum: int = 0) -> st.SearchStrategy[Load]:
    return st.builds(
        Load, lines() | curves(), st.integers(minimum, largest), st.just(0.0) | seconds
    )


@st.composite
def problems(draw: st.DrawFn, micro: int = 3) -> Problem:
    """Random problems, small enough to try all splits."""
    devices = draw(st.integers(1, 4))
    limit = {1: 32, 2: 24, 3: 12, 4: 7}[devices]
    total = st.none() | st.integers(1, devices * limit + 4)
    return Problem(
        tuple(draw(st.lists(loads(limit), min_size=devices, max_size=devices))),
        sync=Syncs(otherwise_s=draw(st.just(0.0) | seconds)),
        multiple=draw(st.sampled_from([1, 1, 2, 3])),
        global_batch=draw(total),
        max_global_batch=draw(st.none() | total),
        micro_batches=draw(st.integers(1, micro)),
        objective=draw(st.sampled_from([throughput, throughput, goodput])),
    )


def goodput(global_batch: Any, step_time_s: Any) -> Any:
    """The goodput at a noise scale of 50 samples."""
    return global_batch / step_time_s / (1 + global_batch / 50)


def time_s(load: Load, batch: int, micro_batch: int) -> float:
    """The compute time of a batch in micro-batches of that size, without the update."""
    sizes = pieces(batch, micro_batch)
    return sum(count * load.model.step_time_s(size) for count, size in sizes)


def as_counted(problem: Problem, load: Load) -> Load:
    """The load without the batches that the device can't have, however fast they are."""
    caps = [load.limit, problem.global_batch, problem.max_global_batch]
    most = min(cap for cap in caps if cap is not None)
    return replace(load, model=load.model.up_to(most))


def options(problem: Problem, load: Load) -> dict[int, float]:
    """Each batch that a device can do, and its least time with the update.

    The time is the least in micro-batches of any size.
    """
    load = as_counted(problem, load)
    multiple = problem.multiple
    limit = load.limit // multiple * multiple
    times = {0: 0.0}
    for size in range(limit, 0, -multiple):
        for batch in range(multiple, size * problem.micro_batches + 1, multiple):
            taken_s = time_s(load, batch, min(batch, size)) + load.update_s
            times[batch] = min(times.get(batch, math.inf), taken_s)
    return times


def all_splits(problem: Problem) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(global batch, step time, number of devices in use) of all splits."""
    of_device = [options(problem, load) for load in problem.loads]
    for load, times in zip(problem.loads, of_device, strict=True):
        if load.required:
            times.pop(0)
    batches = [np.array(list(times)) for times in of_device]
    computes = [np.array(list(times.values())) for times in of_device]
    in_use = [(one > 0).astype(int) for one in batches]
    which = reduce(np.add.outer, [used << device for device, used in enumerate(in_use)])
    step_s = reduce(np.maximum.outer, computes)
    for number, subset in enumerate(subsets(len(problem.loads))):
        of_subset = which == number
        added_s = [sync_s(problem, subset, busy_s) for busy_s in step_s[of_subset]]
        step_s[of_subset] += added_s
    return reduce(np.add.outer, batches), step_s, reduce(np.add.outer, in_use)


def subsets(devices: int) -> list[set[int]]:
    """All sets of devices, each at the number whose bits are its devices."""
    sets = []
    for bits in range(1 << devices):
        sets.append({device for device in range(devices) if bits >> device & 1})
    return sets


def by_set(**seconds: float) -> dict[frozenset[int], float]:
    """`abd=0.1` is 0.1 s of the devices 0, 1 and 3."""
    return {frozenset(map("abcde".index, of)): took for of, took in seconds.items()}


def sync_s(problem: Problem, used: set[int], busy_s: float) -> float:
    """A set's sync: measured, or that of the smallest measured set that it is a part of."""
    measured = problem.sync.measured
    if len(used) < 2:
        return 0.0
    for size in range(len(used), len(problem.loads) + 1):
        around = [some for some in measured if len(some) == size and used <= some]
        if around:
            least = min(around, key=lambda some: measured[some])
            if least in problem.sync.curves:
                return float(problem.sync.curves[least].at(busy_s))
            return measured[least]
    return max(measured.values(), default=problem.sync.otherwise_s)


def brute(problem: Problem) -> tuple[float, list[int]]:
    """The highest value, 0 if no split is as wanted, and all possible global batches."""
    totals, step, _ = all_splits(problem)
    wanted = (totals > 0) & (totals <= (problem.max_global_batch or math.inf))
    there = sorted(set(totals[wanted].tolist()))
    if problem.global_batch is not None:
        wanted &= totals == problem.global_batch
    values = problem.objective(totals[wanted], step[wanted])
    return float(values.max(initial=0.0)), there


def assert_split(problem: Problem, found: Allocation) -> None:
    """Asserts that a split is as wanted, and takes the time that it claims."""
    busy_s = []
    split = found.split
    given = zip(split.batches, split.micro_batches, found.compute_s, strict=True)
    for load, (batch, micro, compute_s) in zip(problem.loads, given, strict=True):
        if batch:
            busy_s.append(compute_s + load.update_s)
            assert 0 < micro <= load.limit
            assert micro % problem.multiple == batch % problem.multiple == 0
            assert math.ceil(batch / micro) <= problem.micro_batches
            own_s = time_s(as_counted(problem, load), batch, micro)
            assert compute_s == pytest.approx(own_s, rel=1e-12)
        else:
            assert micro == compute_s == 0
    step_s = max(busy_s) + sync_s(problem, {*split.used}, max(busy_s))
    assert found.step_time_s == pytest.approx(step_s, rel=1e-13)
    assert split.global_batch == (problem.global_batch or split.global_batch)
    assert split.global_batch <= (problem.max_global_batch or math.inf)
    if problem.global_batch is None and problem.max_global_batch is None:
        assert "global batch" not in found.binds


def assert_best(problem: Problem) -> None:
    best, there = brute(problem)
    if not best:
        with pytest.raises(NoSplitError) as error:
            allocate(problem)
        wanted = problem.global_batch
        if wanted is not None:
            below = [batch for batch in there if batch < wanted]
            above = [batch for batch in there if batch > wanted]
            assert error.value.below == max(below, default=None)
            assert error.value.above == min(above, default=None)
        return
    found = allocate(problem)
    assert_split(problem, found)
    for load, batch in zip(problem.loads, found.split.batches, strict=True):
        assert batch or not load.required
    # Splits within 1e-12 of each other are ties: add the rounding of the times.
    assert problem.value(found) == pytest.approx(best, rel=2e-12)


def with_required(problem: Problem, *numbers: int) -> Problem:
    loads = []
    for number, load in enumerate(problem.loads):
        loads.append(replace(load, required=number in numbers))
    return replace(problem, loads=tuple(loads))


def random_loads(random: Random, devices: int, limit: int) -> tuple[Load, ...]:
    loads = []
    for _ in range(devices):
        alpha_s = random.choice([0, random.uniform(0, 0.05)])
        line = Line(alpha_s, random.uniform(1e-3, 1e-2), 0)
        most = random.randint(1, limit)
        loads.append(Load(line, most, random.choice([0, random.uniform(0, 0.05)])))
    return tuple(loads)


def samples_by(problem: Problem) -> tuple[NDArray[Any], Any]:
    """Each time at which a device of a line is done, and how many samples all can do by it."""
    of_devices = []
    for load in problem.loads:
        assert isinstance(load.model, Line)
        batches = np.arange(1, load.limit * problem.micro_batches + 1)
        fixed_s = np.ceil(batches / load.limit) * load.model.alpha_s + load.update_s
        of_devices.append(fixed_s + load.model.beta_s * batches)
    times_s = np.concatenate(of_devices) * (1 + 1e-12)
    return times_s, sum(np.searchsorted(own_s, times_s) for own_s in of_devices)
