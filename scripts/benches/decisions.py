"""Whether `balance` ends with the best split that it could know, on random machines.

The machines' times are off their lines.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, cast, get_args

import numpy as np

from gpubalance.errors import Interrupted
from gpubalance.jobs.balance.course import find_and_prove
from gpubalance.jobs.balance.result import result_so_far
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.events import Watch
from gpubalance.jobs.probe.device_probe import fitted
from gpubalance.planning.curve import octaves
from gpubalance.results.plan import Balance, Plan
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.run import Measurement
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, DeviceProfile, JointProfile
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from gpubalance.workers.party import Party
from scripts.benches.round_counts import RoundCounts, counts_of, told_rounds
from tests.jobs.drawn import DrawnParty, Offset, nothing_kept, quiet
from tests.jobs.probes import SMALL, devices_of, point_of, probe_of, proof_of
from tests.support.known import known

_MACHINES = 800
_MULTIPLE = 8
_NOISE = 0.005
# How far each device is off its usual time in each of many steps, in units of its noise.
_OFF_IN_STEPS = np.random.default_rng(0).standard_normal((4000, 5))
_SYNC = 0.2  # the longest sync, as a part of the slowest device's step at 512
_MIB = 1 << 20
# A file of {search: {card: [[batch, seconds], …]}}: how long real cards took for each batch, with and
# without cuDNN's search for its fastest algorithms. It is not ours to pass on.
RECORD = "GPUBALANCE_RECORD"
Search = Literal["search_off", "search_on"]


@dataclass(frozen=True)
class Machine:
    """Random devices whose times are off their lines by up to `off`, up or down.

    Each size is off by another part.

    With `updates` each has an update of 0 to 10 % of its compute at its limit. With `links` each
    has a sync of its own, of which the longest in use counts, in place of one for all.
    """

    seed: int
    off: float
    updates: bool = True
    links: bool = False

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        random = Random(f"devices {self.seed}")
        drawn = [_profile(random, self.updates) for _ in range(random.randint(2, 5))]
        if not self.links:
            return devices_of(*drawn)
        syncs_s = [random.uniform(0, _SYNC) * _longest_s(drawn) for _ in drawn]
        own = [
            one.model_copy(update={"sync_s": sync_s})
            for one, sync_s in zip(drawn, syncs_s, strict=True)
        ]
        return devices_of(*own)

    @cached_property
    def joint(self) -> JointProfile:
        """A sync of up to a fifth of the slowest device's step at 512.

        Sometimes the joint step also takes more memory than planners expect.
        """
        random = Random(f"joint {self.seed}")
        longest_s = _longest_s([known(device.profile) for device in self.devices])
        sync_s = random.uniform(0, _SYNC) * longest_s
        extra = random.choice([0, 0, 0, 40 * _MIB])
        return JointProfile(sync_s=0.0 if self.links else sync_s, extra_memory=extra)

    def sync_s(self, used: Sequence[int]) -> float:
        """The true sync of these devices."""
        if len(used) < 2:
            return 0.0
        return max(
            self.joint.sync_s,
            *(known(self.devices[device].profile).sync_s for device in used),
        )

    @cached_property
    def wanted(self) -> PlanRequest:
        """The request: half of the machines have a free global batch, a quarter a given one.

        The others accumulate.
        """
        random = Random(f"wanted {self.seed}")
        kind = random.choice(["free", "free", "global batch", "accumulate"])
        if kind == "global batch":
            most = sum(limit_of(device) for device in self.devices)
            return PlanRequest(
                accumulate=1, global_batch=random.randint(8, most // 16) * _MULTIPLE
            )
        return PlanRequest(accumulate="auto" if kind == "accumulate" else 1)

    def offset(self, device: Device, size: int) -> float:
        """A device's time with `size` samples at a time, over that of its line."""
        return 1 + Random(f"{self.seed} {device.uuid} {size}").uniform(
            -self.off, self.off
        )

    def time_s(self, device: Device, batch: int, micro_batch: int) -> float:
        """Seconds of compute and update, without noise."""
        return (
            self._compute_s(device, batch, micro_batch) + known(device.profile).update_s
        )

    def _compute_s(self, device: Device, batch: int, micro_batch: int) -> float:
        profile = known(device.profile)
        return profile.compute_s(batch, micro_batch) * self.offset(device, micro_batch)

    def rate(self, split: BatchSplit, noise: float = _NOISE) -> float:
        """The true samples per second of a split.

        A step takes as long as its last device, and with noise that is not always the same one.
        """
        busy_s = []
        for number in split.used:
            device = self.devices[number]
            batch, micro_batch = split.batches[number], split.micro_batches[number]
            noises = 1 + noise * _OFF_IN_STEPS[:, number]
            compute_s = self._compute_s(device, batch, micro_batch) * noises
            busy_s.append(compute_s + known(device.profile).update_s)
        steps_s = np.max(busy_s, axis=0)
        return split.global_batch / float(np.mean(steps_s) + self.sync_s(split.used))

    @cached_property
    def probe(self) -> Probe:
        probe = probe_of(self.devices, multiple=_MULTIPLE)
        alone = tuple(
            self._alone(one, probe.devices[one.device]) for one in probe.probes
        )
        return probe.model_copy(update={"probes": alone})

    def _alone(self, one: DeviceProbe, device: Device) -> DeviceProbe:
        sizes = octaves(_MULTIPLE, limit_of(device), _MULTIPLE)
        times = [(size, self.time_s(device, size, size)) for size in sizes]
        curve = tuple(point_of(known(device.profile), *point) for point in times)
        model = fitted([(size, time_s, 0.0) for size, time_s in times])
        return one.model_copy(update={"curve": curve, "step_time_model": model})

    def balanced(
        self,
        watch: Watch | None = None,
        offset: Offset | None = None,
        party_of: type[DrawnParty] = DrawnParty,
    ) -> Plan:
        """The plan that the job ends with; `offset` replaces the machine's own."""
        watch = watch or quiet
        request = BalanceRequest(
            devices=self.devices,
            settings=SMALL,
            joint=self.joint,
            plan=self.wanted,
            measuring=Measuring(baseline="none"),
        )
        party = party_of(
            self.devices, self.joint, seed=self.seed, offset=offset or self.offset
        )
        together = Together(
            request, self.probe.model, cast("Party", party), watch, nothing_kept()
        )
        rounds = BalanceRounds(together, self.probe)
        try:
            return find_and_prove(rounds)
        except KeyboardInterrupt as interrupt:
            raise Interrupted.by(interrupt, partial=result_so_far(rounds)) from None


@dataclass(frozen=True)
class SteppedMachine(Machine):
    """One whose times have the steps of real cards, drawn anew."""

    search: Search = "search_off"

    def offset(self, device: Device, size: int) -> float:
        """That of a card of the record at the same part of its limit."""
        return off_by_record(self.search, self.seed, device, size)


def off_by_record(search: Search, seed: int, device: Device, size: int) -> float:
    """A device's time over that of its line, by a card of the record that is drawn for it."""
    cards = _residuals(search)
    drawn = cards[Random(f"{seed} {device.uuid}").randrange(len(cards))]
    part = size / limit_of(device)
    return drawn[min(len(drawn) - 1, int(part * len(drawn)))]


@cache
def _residuals(search: Search) -> list[list[float]]:
    """How far each card of the record is off its line at each batch, from 8 samples on."""
    record = json.loads(Path(os.environ[RECORD]).read_text(encoding="utf-8"))[search]
    found = []
    for points in record.values():
        batches, times = np.array(
            [point for point in points if point[0] >= _MULTIPLE]
        ).T
        line = np.polyfit(batches, times, 1, w=1 / times)
        found.append((times / np.polyval(line, batches)).tolist())
    return found


def _longest_s(profiles: Sequence[DeviceProfile]) -> float:
    return max(one.compute_s(512) for one in profiles)


def _profile(random: Random, updates: bool) -> DeviceProfile:
    limit = random.randint(8, 128) * _MULTIPLE
    alpha_s = random.uniform(0.005, 0.05)
    beta_s = 2e-4 * 10 ** random.uniform(0, 0.8)
    update_s = random.uniform(0, 0.1) * (alpha_s + beta_s * limit)
    return DeviceProfile(
        name="drawn",
        alpha_s=alpha_s,
        beta_s=beta_s,
        update_s=update_s if updates else 0.0,
        memory=(limit + 1) * 4 * _MIB + 64 * _MIB,
        base_memory=64 * _MIB,
        memory_per_sample=4 * _MIB,
        noise=_NOISE,
    )


def limit_of(device: Device) -> int:
    """A device's batch limit alone."""
    profile = known(device.profile)
    return (
        ((profile.memory or 0) - profile.base_memory)
        // profile.memory_per_sample
        // _MULTIPLE
        * _MULTIPLE
    )


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
    best_known = _optimum(
        machine, plan, measured_s, lambda used: sync_s if len(used) > 1 else 0.0
    )
    return Outcome(
        below,
        1 - machine.rate(plan.split, noise=0.0) / optimum,
        1 - proof_of(plan).throughput.median / best_known,
        rounds,
    )


# Seconds of compute and update, by device and batch
Times = dict[int, dict[int, float]]


def _measured_times(how: Balance) -> tuple[Times, float]:
    """What each device took on average for each batch, and the usual sync.

    The batches are those at which it was measured beside others.
    """
    run = known(how.run)
    found: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    measured: list[Measurement] = [
        run,
        *(tried.measured for tried in how.rounds if tried.measured is not None),
    ]
    for measurement in measured:
        for replica in measurement.replicas:
            found[replica.device][replica.batch].append(replica.busy_s)
    times = {}
    for device, by_batch in found.items():
        times[device] = {
            batch: statistics.mean(took) for batch, took in by_batch.items()
        }
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
        factor = statistics.mean(
            [t / line.step_time_s(b) for b, t in taken.items()] or [1.0]
        )
        table = {
            b: factor * line.step_time_s(b)
            for b in range(_MULTIPLE, share.limit + 1, _MULTIPLE)
        }
        tables.append({**table, **taken})
    wanted = machine.wanted.global_batch
    best = 0.0
    numbers = range(len(tables))
    sets = [
        used
        for count in range(1, len(tables) + 1)
        for used in combinations(numbers, count)
    ]
    for deadline in sorted(t for table in tables for t in table.values()):
        most = [
            max((b for b, t in table.items() if t <= deadline), default=0)
            for table in tables
        ]
        for used in sets:
            total = sum(most[device] for device in used)
            if total and (wanted is None or total >= wanted):
                best = max(best, (wanted or total) / (deadline + sync_s(used)))
    return best


def main(machines: int = _MACHINES, seed: int = 0) -> Iterator[str]:
    yield f"{machines} drawn machines a row"
    for off, updates in ((0.0, False), (0.02, False), (0.03, False), (0.03, True)):
        found = [
            outcome(Machine(seed + number, off, updates)) for number in range(machines)
        ]
        yield f"±{off:.0%}{', updates' if updates else ''}: {_figures(found)}"
    for search in get_args(Search):
        if RECORD in os.environ:
            stepped = [
                SteppedMachine(seed + n, 0.0, search=search)
                for n in range(machines // 4)
            ]
            yield f"real steps, {search}: {_figures(list(map(outcome, stepped)))}"
        else:
            yield f"real steps, {search}: left out, as {RECORD} names no file"
    yield _links(
        [
            outcome(Machine(seed + number, 0.0, links=True))
            for number in range(machines // 4)
        ]
    )


def _links(found: list[Outcome]) -> str:
    """Of machines on which each device has a sync of its own."""
    below = [item.below_optimum for item in found if item.below_optimum is not None]
    return (
        f"links of their own: over 0.5 % below the best of all sets {_over(0.005, below)}; "
        f"{told_rounds([item.rounds for item in found])}"
    )


def _figures(found: list[Outcome]) -> str:
    measured = [item.below_measured for item in found]
    optimum = [item.below_optimum for item in found if item.below_optimum is not None]
    best_known = [item.below_known for item in found if item.below_known is not None]
    return (
        f"over 0.5 % below a split that they measured {_over(0.005, measured)}; "
        f"over 1 % below the optimum {_over(0.01, optimum)}, by what was measured "
        f"{_over(0.01, best_known)}; {told_rounds([item.rounds for item in found])}"
    )


def _over(bound: float, parts: Sequence[float]) -> str:
    return (
        f"{sum(part > bound for part in parts)} of {len(parts)}, worst {max(parts):.1%}"
    )
