"""How a balance of a random machine ended, beside the best that it measured or could know."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

from gpubalance.results.plan import Balance, Plan, Round
from gpubalance.results.run import Measurement
from tests.jobs.probes import proof_of
from tests.support.known import known
from tests.support.machines import MULTIPLE, Machine


class RoundCounts(NamedTuple):
    """How many rounds a balance spent, also those of them that measure a split once more.

    Those with other devices than the first round's learn whether these need less sync.
    """

    every: int
    once_more: int
    other_devices: int


def counts_of(rounds: Sequence[Round]) -> RoundCounts:
    """The rounds by what they are for; a device alone needs no sync."""
    first = rounds[0].split.used
    measured = set()
    once_more = 0
    other_devices = 0
    for tried in rounds:
        used = tried.split.used
        if tried.split in measured:
            once_more += 1
        elif len(used) > 1 and used != first:
            other_devices += 1
        if tried.measured is not None:
            measured.add(tried.split)
    return RoundCounts(len(rounds), once_more, other_devices)


class Outcome(NamedTuple):
    """How far a balance ended below its best measured split and two computed optima, as parts.

    `below_measured` and `below_optimum` use the true rates of splits, `below_known` the measured
    ones. The true optimum knows no noise, and is compared with the end's rate without noise. The
    optima are None if micro-batches were asked for, as the fewest are not the fastest.
    """

    below_measured: float
    below_optimum: float | None
    below_known: float | None
    rounds: RoundCounts


def outcome(machine: Machine) -> Outcome:
    """Balances a machine and judges the end."""
    plan = machine.balanced()
    how = known(plan.balance)
    measured = [tried.split for tried in how.rounds if tried.measured is not None]
    ended = machine.rate(plan.split)
    below = 1 - ended / max(map(machine.rate, measured))
    rounds = counts_of(how.rounds)
    if machine.wanted.accumulate != 1:
        return Outcome(below, None, None, rounds)
    measured_s, sync_s = _measured_times(how)
    true: dict[int, dict[int, float]] = {}
    for number, times in measured_s.items():
        device = machine.devices[number]
        true[number] = {batch: machine.time_s(device, batch, batch) for batch in times}
    optimum = _optimum(machine, plan, true, machine.sync_s)

    def measured_sync_s(used: Sequence[int]) -> float:
        return sync_s if len(used) > 1 else 0.0

    best_known = _optimum(machine, plan, measured_s, measured_sync_s)
    below_optimum = 1 - machine.rate(plan.split, noise=0.0) / optimum
    below_known = 1 - proof_of(plan).throughput.median / best_known
    return Outcome(below, below_optimum, below_known, rounds)


# Seconds of compute and update, by device and batch
Times = dict[int, dict[int, float]]


def _measured_times(how: Balance) -> tuple[Times, float]:
    """What each device took on average for each batch, and the usual sync.

    The batches are those at which it was measured beside others.
    """
    found: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    measured: list[Measurement] = [known(how.run)]
    measured += [tried.measured for tried in how.rounds if tried.measured is not None]
    for measurement in measured:
        for replica in measurement.replicas:
            found[replica.device][replica.batch].append(replica.busy_s)
    mean = statistics.mean
    times = {d: {b: mean(took) for b, took in of.items()} for d, of in found.items()}
    several = [measurement for measurement in measured if len(measurement.replicas) > 1]
    if not several:
        return times, 0.0
    syncs = []
    for measurement in several:
        busiest_s = max(replica.busy_s for replica in measurement.replicas)
        syncs.append(measurement.step_time_s.median - busiest_s)
    return times, max(0.0, statistics.median(syncs))


def _optimum(
    machine: Machine,
    plan: Plan,
    taken_s: Times,
    sync_s: Callable[[Sequence[int]], float],
) -> float:
    """The most samples per second by brute force.

    For each time that a device may take, it looks at the most that each set of devices does. A
    device takes `taken_s` for a batch, else its line's time, times the mean factor between the two.
    """
    tables = []
    for share, one in zip(plan.shares, machine.probe.probes, strict=True):
        line = known(one.step_time_model).planned
        taken = taken_s.get(share.device, {})
        factors = [t / line.step_time_s(b) for b, t in taken.items()]
        factor = statistics.mean(factors or [1.0])
        batches = range(MULTIPLE, share.limit + 1, MULTIPLE)
        tables.append({b: factor * line.step_time_s(b) for b in batches} | taken)
    wanted = machine.wanted.global_batch
    best = 0.0
    sets: list[tuple[int, ...]] = []
    for count in range(1, len(tables) + 1):
        sets += combinations(range(len(tables)), count)
    for deadline in sorted(t for table in tables for t in table.values()):
        fitting = [[b for b, t in of.items() if t <= deadline] for of in tables]
        maximum = [max(batches, default=0) for batches in fitting]
        for used in sets:
            total = sum(maximum[device] for device in used)
            if total and (wanted is None or total >= wanted):
                best = max(best, (wanted or total) / (deadline + sync_s(used)))
    return best
