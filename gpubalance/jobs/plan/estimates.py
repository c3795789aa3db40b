"""What is known of devices: what their probe said, corrected by every joint measurement."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from gpubalance.jobs.plan.problem import find_probes, problem_of
from gpubalance.jobs.plan.splits import MeasuredSplit
from gpubalance.planning.model import LINE_WITHIN, Curve, Line
from gpubalance.planning.problem import Allocation, Binds, Problem
from gpubalance.planning.sync import SyncCurve, Syncs
from gpubalance.results.probe import Probe
from gpubalance.results.run import Measurement
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.planning import PlanRequest

# A device whose time in the same split changes by more than this part, beyond the uncertainty of
# both measurements, has changed its speed. In another split the step-time model may be wrong
# instead.
_MOVED = 0.05
# A split that promises less than this part more is not worth a round, nor is less uncertainty than
# that. A balance is to end within 0.5 % of the best, and what is promised may be a little off.
WORTH_A_ROUND = 0.004
# How many times as much as a device gave alone it may be thought to give
_BELIEVED = 1.5
# How many times as fast as alone, at the same batch, no device is beside others
_FASTER = 2.0
# Of the shortest step: splits whose sync differs by less have the one measured last.
_SYNC_DIFFERS = 0.02
# By how much a device's joint times over its solo times may differ by chance from size to size
_FACTORS_DIFFER = 0.1
# Sizes so near tell equally much of one between them.
_NEAR_OCTAVES = 0.5
_ALIKE = 0.001  # of throughput: splits that differ by less count as equal


class DeviceEstimates:
    """What the probe says of the devices, corrected by every measurement of them together.

    A measured split counts with what was measured, whatever a model says, while its devices keep
    their speed. Raises what `find_probes` and `problem_of` do.
    """

    def __init__(
        self, probe: Probe, devices: Sequence[Device], request: PlanRequest
    ) -> None:
        self.probe = probe
        self.devices = tuple(devices)
        self.request = request
        self.probes = find_probes(probe, devices)
        self._by_probe = problem_of(probe, self.probes, self.devices, request)
        self._loads = list(self._by_probe.loads)
        # Of each set of devices, as last measured
        self._syncs_s: dict[frozenset[int], float] = {}
        # Of each of its splits, as last measured at the devices' present speed: (busy, sync)
        self._sync_points: dict[
            frozenset[int], dict[BatchSplit, tuple[float, float]]
        ] = defaultdict(dict)
        # Seconds of a sum of all gradients over some sets of devices
        self.sums_s: dict[frozenset[int], float] = {}
        self._measured: dict[BatchSplit, MeasuredSplit] = {}
        self._steady = True  # whether a device that changed its speed keeps the new one
        # For each device at its present speed, by micro-batch: its compute times together over
        # those alone.
        self._factors: dict[int, dict[int, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._changes: dict[int, float] = {}
        self.stamps_are_late = False

    @property
    def problem(self) -> Problem:
        """The solver's problem by what is known now."""
        syncs = Syncs(
            self._syncs_s, self.request.sync_s or 0.0, self.sums_s, self._sync_curves()
        )
        return replace(self._by_probe, loads=tuple(self._loads), sync=syncs)

    def _sync_curves(self) -> dict[frozenset[int], SyncCurve]:
        """The curve of each set of devices whose sync clearly depends on the split.

        Of splits that differ by chance a plan would choose the one measured with the least sync.
        """
        curves = {}
        for used, by_split in self._sync_points.items():
            syncs_s = [sync_s for _, sync_s in by_split.values()]
            step_s = min(map(sum, by_split.values()), default=0.0)
            if syncs_s and max(syncs_s) - min(syncs_s) > _SYNC_DIFFERS * step_s:
                curves[used] = SyncCurve.through(by_split.values())
        return curves

    def even_if_undecided(self, promised: Allocation) -> Allocation:
        """The even split of as large a batch, if the probe can't tell that the promised one gains.

        Else the promised one. Equal devices whose times were measured within ± 3 % would otherwise
        get unequal batches by chance.
        """
        used = promised.split.used
        problem = self.problem
        granule = problem.multiple * len(used)
        global_batch = promised.split.global_batch
        if self.request.global_batch is None:
            global_batch -= global_batch % granule
        share, rest = divmod(global_batch, len(used))
        room = min(problem.loads[device].limit for device in used)
        if rest or share % problem.multiple or not 0 < share <= room:
            return promised
        batches = [0] * len(problem.loads)
        for device in used:
            batches[device] = share
        split = BatchSplit(tuple(batches))
        computes_s = tuple(problem.computes_s(split))
        even = Allocation(
            split, computes_s, problem.step_time_s(computes_s), promised.binds
        )
        gain = problem.value(promised) / problem.value(even) - 1
        if gain > max(self._half_width(device, share) for device in used):
            return promised
        binds: list[Binds] = []
        for bound, batch, load in zip(
            promised.binds, batches, problem.loads, strict=True
        ):
            # With less than before it has room, and could take more.
            has_room = bound == "memory" and 0 < batch < load.limit
            binds.append("speed" if has_room else bound)
        return replace(even, binds=tuple(binds))

    def _half_width(self, device: int, batch: int) -> float:
        """How exactly the probe knows a device's time at the measured batch next to this one."""
        curve = self.probes[device].curve
        point = min(curve, key=lambda point: abs(math.log(point.batch / batch)))
        return min(LINE_WITHIN, point.half_width)

    def sync_s(self, split: BatchSplit) -> float | None:
        """Seconds of sync of the devices that a split uses; None if that is unknown.

        For a split of one device it is that of all devices.
        """
        if self.request.sync_s is None and not self._syncs_s:
            return None
        used = set(split.used)
        if len(used) <= 1:
            used = set(range(len(self.devices)))
        problem = self.problem
        busy_s = problem.busy_s(problem.computes_s(split))
        return float(problem.sync.curve(used).at(busy_s))

    def left_out_of_measured_superset(self, split: BatchSplit) -> list[int]:
        """The devices that the smallest measured superset of a split's devices has besides."""
        used = set(split.used)
        if len(used) < 2:
            return []
        return sorted(self.problem.sync.smallest_measured_superset(used) - used)

    def alone_s(self, device: int, split: BatchSplit) -> float:
        """A device's compute time in seconds for its part of a split, by its own probe."""
        load = self._by_probe.loads[device]
        return load.compute_s(split.batches[device], split.micro_batches[device])

    def times_alone(self, split: BatchSplit, measured: Measurement) -> float:
        """The least number of times as long as alone that a device computed in a split.

        It is 1 for a device alone, or if stamps are late.
        """
        if self.stamps_are_late or len(measured.replicas) == 1:
            return 1.0
        return min(
            replica.compute_s / self.alone_s(replica.device, split)
            for replica in measured.replicas
        )

    def alone_update_s(self, device: int) -> float:
        """A device's weight update in seconds, by its own probe."""
        return self._by_probe.loads[device].update_s

    def has(self, split: BatchSplit) -> bool:
        """Whether that split was measured at its devices' present speed."""
        measured = self._measured.get(split)
        return measured is not None and bool(measured.counted_measurements)

    def best(self, *, proven: bool = False) -> MeasuredSplit | None:
        """The fastest of the measured splits, or of the `proven` ones, or None.

        Only what was measured at the devices' present speed counts. Among splits that measurements
        can't tell apart it is the one with the smallest global batch: so chance does not decide,
        and a larger one costs learning progress that throughput does not show.

        A split above the limits that are known by now no longer fits; a proven one did fit.
        """
        fitting = self._fitting(proven=proven)
        fastest = max((measured.value for measured in fitting), default=0.0)
        equal_ones = [
            measured for measured in fitting if measured.value >= (1 - _ALIKE) * fastest
        ]
        return min(
            equal_ones,
            key=lambda measured: (measured.planned.split.global_batch, -measured.value),
            default=None,
        )

    def most_uncertain_rival(self) -> MeasuredSplit | None:
        """The least exactly known of the best split and its rivals; None without rivals.

        Another measurement of it may show which of them is the best.
        """
        best = self.best()
        if best is None:
            return None
        rivals = []
        for measured in self._fitting():
            if measured is not best and _rivals(measured, best):
                rivals.append(measured)
        if not rivals:
            return None
        unclear = [
            measured for measured in [*rivals, best] if measured.may_be_measured_again
        ]
        return max(unclear, key=attrgetter("relative_half_width"), default=None)

    def _fitting(self, *, proven: bool = False) -> list[MeasuredSplit]:
        fitting = []
        for measured in self._measured.values():
            counts = measured.run or (not proven and self.fits(measured.planned.split))
            if measured.counted_measurements and counts:
                fitting.append(measured)
        return fitting

    def fits(self, split: BatchSplit) -> bool:
        """Whether no device is given more at a time than the planner allows it by now."""
        pairs = zip(split.micro_batches, self._loads, strict=True)
        return all(size <= load.limit for size, load in pairs)

    def is_as_asked(self, split: BatchSplit) -> bool:
        """Whether it has the global batch and multiples asked for, and leaves memory free."""
        asked = self.request
        if asked.global_batch not in (None, split.global_batch):
            return False
        multiple = asked.batch_multiple or 1
        if any(batch % multiple for batch in split.batches):
            return False
        return not asked.margin_bytes or self.fits(split)

    def lower_limits(
        self, split: BatchSplit, limits: Iterable[tuple[int, int]]
    ) -> None:
        """Forgets a split that ran out of memory, and lowers its devices' limits.

        `limits` has (device, largest micro-batch that fits).
        """
        self._measured.pop(split, None)
        for device, limit in limits:
            self.lower_limit(device, limit)

    def lower_limit(self, device: int, limit: int) -> None:
        """Gives a device no more than this micro-batch from now on."""
        load = self._loads[device]
        self._loads[device] = replace(load, limit=min(load.limit, limit))

    def moved(self, split: BatchSplit, measured: Measurement) -> dict[int, float]:
        """The devices whose speed changed since this split was measured before.

        Their values are compute time now over then.
        """
        ratios: dict[int, float] = {}
        is_late = self.stamps_are_late or self._is_late(split, measured)
        if not self._steady or not self.has(split) or is_late:
            return ratios
        for earlier in self._measured[split].counted_measurements:
            unsure = earlier.step_time_s.relative_half_width
            unsure += measured.step_time_s.relative_half_width
            for then, now in zip(earlier.replicas, measured.replicas, strict=True):
                ratio = now.compute_s / then.compute_s
                if abs(ratio - 1) > _MOVED + unsure:
                    ratios[now.device] = ratio
        return ratios

    def _is_late(self, split: BatchSplit, measured: Measurement) -> bool:
        """Whether a stamp came late, as on a busy machine.

        A device then seems to take a small part of what it took alone for the same batch.
        """
        return any(
            self.alone_s(replica.device, split) > _FASTER * replica.compute_s
            for replica in measured.replicas
        )

    def _doubt_stamps(self) -> None:
        """Takes every step measured so far, and to come, as compute of each of its devices."""
        self.stamps_are_late = True
        self._factors.clear()
        self._syncs_s.clear()
        self._sync_points.clear()
        for measured_split in self._measured.values():
            for measured in measured_split.counted_measurements:
                self._learn_times(measured_split.planned.split, measured)

    def _learn_factors(
        self, split: BatchSplit, measured: Measurement
    ) -> tuple[float, ...]:
        """Notes by how much its devices took longer than alone; returns their computes."""
        usual_s = measured.step_time_s.median - measured.slow_s
        computes_s = []
        for replica in measured.replicas:
            compute_s = replica.compute_s
            if self.stamps_are_late:
                compute_s = usual_s - replica.update_s
            factor = compute_s / self.alone_s(replica.device, split)
            self._factors[replica.device][split.micro_batches[replica.device]].append(
                factor
            )
            computes_s.append(compute_s)
        return tuple(computes_s)

    def learn(self, planned: Allocation, measured: Measurement) -> None:
        """Takes in what a split gave. What devices with another speed gave before is forgotten."""
        split = planned.split
        for device, ratio in self.moved(split, measured).items():
            self._forget(device, ratio)
        known = self._measured.get(split) or MeasuredSplit(
            planned, (), self._by_probe.objective
        )
        if not self.stamps_are_late and self._is_late(split, measured):
            self._doubt_stamps()
        measurements = (*known.measurements, measured)
        self._measured[split] = replace(
            known, planned=planned, measurements=measurements
        )
        self._learn_times(split, measured)

    def _learn_times(self, split: BatchSplit, measured: Measurement) -> None:
        """Takes in what a split's devices took, and what its gradients' sync did."""
        computes_s = self._learn_factors(split, measured)
        busy_s = []
        for replica, compute_s in zip(measured.replicas, computes_s, strict=True):
            device = replica.device
            self._loads[device] = replace(
                self._loads[device],
                model=self._model(device),
                update_s=replica.update_s,
            )
            busy_s.append(compute_s + replica.update_s)
        if len(busy_s) > 1 and self.request.sync_s is None:
            usual_s = measured.step_time_s.median - measured.slow_s
            used = frozenset(split.used)
            self._syncs_s[used] = max(0.0, usual_s - max(busy_s))
            self._sync_points[used][split] = (max(busy_s), self._syncs_s[used])

    def fully_measured(self, split: BatchSplit) -> MeasuredSplit | None:
        """A split's measurements at any speed, if it was measured three times; else None.

        Then measuring it once more would not help.
        """
        if split not in self._measured:
            return None
        measured = replace(self._measured[split], since=0)
        if measured.may_be_measured_again:
            return None
        return measured

    def count_all(self) -> None:
        """Takes the machine for one that is not steady.

        All measurements of a split count then, at whatever speed.
        """
        self._steady = False
        self._changes.clear()
        for split, measured in self._measured.items():
            self._measured[split] = replace(measured, since=0)

    def forget_set(self, used: tuple[int, ...]) -> None:
        """Forgets what splits of these devices gave.

        From now on their gradients are summed in another way.
        """
        for split in list(self._measured):
            if split.used == used:
                del self._measured[split]
        self._syncs_s.pop(frozenset(used), None)
        self._sync_points.pop(frozenset(used), None)

    def _forget(self, device: int, ratio: float) -> None:
        self._changes[device] = ratio * self._changes.get(device, 1.0)
        del self._factors[device]
        for split in self._measured:
            if split.batches[device]:
                self._mark_stale(split)

    def _mark_stale(self, split: BatchSplit) -> None:
        measured = self._measured[split]
        self._measured[split] = replace(measured, since=len(measured.measurements))
        self._sync_points[frozenset(split.used)].pop(split, None)

    def _model(self, device: int) -> Line | Curve:
        """A device's step time in joint runs.

        Measured sizes take what they took, others their time alone times `_factor_at`. A size that
        is off the line says little about its neighbours: the curve bends only right beside it. A
        throughput far above all that the device gave alone is not believed: a stamp that came late
        on a busy machine tells of one.
        """
        alone = self._by_probe.loads[device].model
        limit = self._loads[device].limit
        multiple = self._by_probe.multiple
        factors = {}
        for size, each in self._factors[device].items():
            factors[size] = statistics.fmean(each)
        sizes = {multiple, limit}
        if isinstance(alone, Curve):
            sizes.update(alone.batches)
        for size in factors:
            sizes.update([size - multiple, size + multiple])
        possible = {size for size in sizes if 0 < size <= limit}
        batches = sorted(possible | factors.keys())
        max_rate = _BELIEVED * self._best_rate(device)
        times_s = []
        for size in batches:
            time_s = _factor_at(size, factors) * alone.measured_s(size)
            times_s.append(max(time_s, size / max_rate))
        return Curve(tuple(batches), tuple(times_s))

    def _best_rate(self, device: int) -> float:
        """The best throughput of the device that was measured alone, in samples/s."""
        rates = [point.throughput.median for point in self.probes[device].curve]
        return max(rates, default=math.inf)

    def changed(self) -> Iterator[tuple[int, float]]:
        """Each device whose speed changed since its first joint measurement, and by which part.

        The part is above 0 for a device that is slower now.
        """
        for device, ratio in sorted(self._changes.items()):
            if abs(ratio - 1) > _MOVED:
                yield device, ratio - 1


def _factor_at(size: int, factors: Mapping[int, float]) -> float:
    """A measured size's factor; elsewhere the mean of all, or one weighted by nearness.

    Nearness counts if factors differ by more than chance: d octaves away, with the weight
    1/max(½, d)². Those within half an octave count alike.
    """
    if size in factors:
        return factors[size]
    by_size = factors.values()
    if max(by_size) <= (1 + _FACTORS_DIFFER) * min(by_size):
        return statistics.fmean(by_size)
    total = 0.0
    weights = 0.0
    for measured, factor in factors.items():
        octaves = abs(math.log2(size / measured))
        weight = 1 / max(_NEAR_OCTAVES, octaves) ** 2
        total += weight * factor
        weights += weight
    return total / weights


def _rivals(other: MeasuredSplit, best: MeasuredSplit) -> bool:
    """Whether the other may be faster than the best by more than is worth a round."""
    doubt = math.hypot(other.relative_half_width, best.relative_half_width)
    return other.value / best.value - 1 + doubt > WORTH_A_ROUND
