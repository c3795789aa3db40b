"""Ours beside the rules of others, on drawn machines with the same noise and as many steps.

Each row is a kind of machine. `balance` itself runs on it: the planner and its rounds, from a probe
of octaves with five timings each. What it measured, its proof left out, is what the others may
spend. A split counts by its true throughput, over the best that brute force finds for the same
global batch: over all sets of devices, whatever a rule knows.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property
from itertools import combinations
from multiprocessing import get_context
from random import Random
from typing import Any, NamedTuple

import numpy as np

from gpubalance.engine.pace import ComputeTimes, noise_seed
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.planning import PlanRequest
from scripts.benches.decisions import RECORD, Search, off_by_record
from scripts.benches.rules_of_others import RULES, Ask, Given, Rule
from tests.jobs.probes import of_config
from tests.support.known import known
from tests.support.machines import Machine, limit_of

_MACHINES = 1000
_TIMINGS = 5  # of a probe's point
_WITHIN = 0.02
OURS = "gpubalance"


class RuleMachine(Machine):
    """A drawn machine with a global batch, in whole samples."""

    kind = "lines"

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, off=0.0)

    @cached_property
    def joint(self) -> JointProfile:
        """As drawn, without memory that no rule knows of."""
        return super().joint.model_copy(update={"extra_memory": 0})

    @cached_property
    def wanted(self) -> PlanRequest:
        maximum = sum(map(limit_of, self.devices))
        minimum = len(self.devices) * 8
        batch = Random(f"batch {self.seed}").randint(
            minimum, max(minimum, int(0.8 * maximum))
        )
        return PlanRequest(accumulate=1, global_batch=batch, batch_multiple=1)

    @property
    def given(self) -> Given:
        """What the rules of others know."""
        return Given(
            known(self.wanted.global_batch), tuple(map(limit_of, self.devices))
        )

    def offset(self, device: Device, size: int) -> float:  # noqa: ARG002
        return 1.0

    def rate(self, split: BatchSplit, noise: float = 0.0) -> float:
        """The true samples per second, without noise, as the best is known without it."""
        return super().rate(split, noise)


class AtLimits(RuleMachine):
    """One whose limits bind: nine tenths of all that fits is asked for."""

    kind = "limits bind"

    @cached_property
    def wanted(self) -> PlanRequest:
        maximum = sum(map(limit_of, self.devices))
        return PlanRequest(
            accumulate=1, global_batch=int(0.9 * maximum), batch_multiple=1
        )


class WithLinks(RuleMachine):
    """One whose devices have a sync each: some are better left out."""

    kind = "a sync for each"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.__dict__["links"] = True


class WithSteps(RuleMachine):
    """One whose times have the steps of real cards, drawn anew."""

    kind = "steps, cuDNN's search off"
    search: Search = "search_off"

    def offset(self, device: Device, size: int) -> float:
        return off_by_record(self.search, self.seed, device, size)


class WithSmallSteps(WithSteps):
    """The same, of cards for which cuDNN looked for its fastest algorithms."""

    kind = "steps, cuDNN's search on"
    search = "search_on"


class Published(RuleMachine):
    """The four published cards at their global batch."""

    kind = "the four published cards"
    devices, joint = of_config("gtx1070-m40-gtx750")
    wanted = PlanRequest(accumulate=1, global_batch=512, batch_multiple=1)


KINDS: Sequence[type[RuleMachine]] = (
    RuleMachine,
    AtLimits,
    WithLinks,
    WithSteps,
    WithSmallSteps,
    Published,
)


class End(NamedTuple):
    """A rule's end on a machine: over the best possible, and after how many steps it is near."""

    of_best: float
    settled: int


def ends(machine: RuleMachine) -> dict[str, End]:
    """How each rule ends."""
    best = best_rate(machine)
    spent, course = _of_ours(machine)
    found = {OURS: _end(course, best)}
    for name, rule in RULES.items():
        found[name] = _end(_of_others(rule, machine, spent), best)
    return found


# Steps spent before, and the true throughput from then on
Course = list[tuple[int, float]]


def _of_ours(machine: RuleMachine) -> tuple[int, Course]:
    plan = machine.balanced()
    points = sum(len(probe.curve) for probe in machine.probe.probes)
    steps = _TIMINGS * points
    course = []
    for tried in known(plan.balance).rounds:
        course.append((steps, machine.rate(tried.split)))
        if tried.measured is not None:
            taken = tried.measured.step_time_s
            steps += taken.steps_per_sample * len(taken.samples)
    course.append((steps, machine.rate(plan.split)))
    return steps, course


def _of_others(rule: Rule, machine: RuleMachine, maximum: int) -> Course:
    """The course of a rule that may spend so many steps."""
    times = [
        ComputeTimes(known(device.profile), seed=noise_seed(machine.seed + 1, number))
        for number, device in enumerate(machine.devices)
    ]

    def mean_s(number: int, batch: int, steps: int) -> float:
        device = machine.devices[number]
        drawn = statistics.mean(times[number].next_s(batch) for _ in range(steps))
        return drawn * machine.offset(device, batch) + known(device.profile).update_s

    asks = rule(machine.given)
    ask: Ask = next(asks)
    spent = 0
    course: Course = []
    while True:
        if not ask.alone:
            course.append((spent, machine.rate(BatchSplit(ask.split))))
        # One device after the other, as in our probe.
        spent += ask.steps * (len(ask.split) if ask.alone else 1)
        if spent >= maximum and course:
            return course
        taken = [
            mean_s(number, batch, ask.steps) for number, batch in enumerate(ask.split)
        ]
        ask = asks.send(taken)


def _end(course: Course, best: float) -> End:
    last = course[-1][1]
    settled = course[-1][0]
    for spent, rate in reversed(course):
        if abs(rate / last - 1) > _WITHIN:
            break
        settled = spent
    return End(last / best, settled)


def best_rate(machine: RuleMachine) -> float:
    """The most samples per second that any split of the global batch gives, by brute force."""
    batch = known(machine.wanted.global_batch)
    most_by: list[Callable[[Any], Any]] = []
    all_times = []
    for device in machine.devices:
        sizes = np.arange(1, limit_of(device) + 1)
        times = np.array(
            [machine.time_s(device, int(size), int(size)) for size in sizes]
        )
        order = np.argsort(times, kind="stable")
        sorted_s = times[order]
        largest = np.maximum.accumulate(sizes[order])
        all_times.append(times)
        most_by.append(_maximum(sorted_s, largest))
    deadlines = np.unique(np.concatenate(all_times))
    maximum = np.array([of(deadlines) for of in most_by])
    numbers = range(len(machine.devices))
    best = 0.0
    for count in range(1, len(numbers) + 1):
        for used in combinations(numbers, count):
            enough = maximum[list(used)].sum(axis=0) >= batch
            if enough.any():
                deadline_s = float(deadlines[enough.argmax()])
                best = max(best, batch / (deadline_s + machine.sync_s(used)))
    return best


def _maximum(sorted_s: Any, largest: Any) -> Callable[[Any], Any]:
    """The most samples that a device does within each of some times."""

    def maximum(deadlines: Any) -> Any:
        places = np.searchsorted(sorted_s, deadlines, "right")
        return np.where(places, largest[np.maximum(places - 1, 0)], 0)

    return maximum


def _of_seed(asked: tuple[type[RuleMachine], int]) -> dict[str, End]:
    kind, seed = asked
    return ends(kind(seed))


def main(machines: int = _MACHINES, seed: int = 0) -> Iterator[str]:
    yield f"{machines} machines a row; throughput at the end over the best: mean, worst; steps"
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for kind in KINDS:
            if issubclass(kind, WithSteps) and RECORD not in os.environ:
                yield f"{kind.kind}: left out, as {RECORD} names no file"
                continue
            count = 1 if kind is Published else machines
            asked = [(kind, seed + number) for number in range(count)]
            found = list(pool.map(_of_seed, asked, chunksize=4))
            for name in (OURS, *RULES):
                of = [item[name] for item in found]
                parts = [end.of_best for end in of]
                steps = statistics.median(end.settled for end in of)
                yield (
                    f"{kind.kind}, {name}: {statistics.mean(parts):.3f}, {min(parts):.3f}; "
                    f"{steps:.0f}"
                )
