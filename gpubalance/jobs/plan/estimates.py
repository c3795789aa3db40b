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
# A round must promise, or decide about, at least this part of the best value. A balance is to end
# within 0.5 % of the best split, and predictions may be a little off.
WORTH_A_ROUND = 0.004
# A device's joint throughput is believed up to this many times its best throughput alone.
_BELIEVED = 1.5
# No device computes this many times as fast as alone: such a time comes from a late stamp.
_FASTER = 2.0
# As a part of the shortest step. If the sync of a set's splits differs by less, one value counts
# for all of them: the sync measured last.
_SYNC_DIFFERS = 0.02
# A device's joint times over its solo times may differ by this part from size to size by chance.
_FACTORS_DIFFER = 0.1
# Measured sizes within this many octaves of another size count alike for it.
_NEAR_OCTAVES = 0.5
# Splits whose values differ by less than this part count as equal.
_ALIKE = 0.001


class DeviceEstimates:
    """What the probe says of the devices, corrected by every measurement of them together.

    A balance keeps one from its first round to its end; a plan makes one and drops it. A measured
    split counts with what was measured, whatever a model says, while its devices keep their speed.
    Raises what `find_probes` and `problem_of` do.
    """

    def __init__(
        self, probe: Probe, devices: Sequence[Device], request: PlanRequest
    ) -> None:
        self.probe = probe
        self.devices = tuple(devices)
        self.request = request
        self.probes = find_probes(probe, devices)
        self._probe_problem = problem_of(probe, self.probes, self.devices, request)
        self._loads = list(self._probe_problem.loads)
        # By set of devices, as last measured
        self._syncs_s: dict[frozenset[int], float] = {}
        # By set of devices and split, as last measured at the devices' present speed: the seconds
        # of (busy, sync)
        self._sync_points: dict[
            frozenset[int], dict[BatchSplit, tuple[float, float]]
        ] = defaultdict(dict)
        # Seconds of a sum of all gradients over some sets of devices
        self.sums_s: dict[frozenset[int], float] = {}
        self._measured: dict[BatchSplit, MeasuredSplit] = {}
        # False once a device's speed was seen to come and go: see `count_all`.
        self._steady = True
        # By device at its present speed, then by micro-batch: compute times together over those
        # alone
        self._factors: dict[int, dict[int, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        # By device whose speed changed: its compute time now over that of its first measurement
        self._changes: dict[int, float] = {}
        self.stamps_are_late = False

    @property
    def problem(self) -> Problem:
        """The solver's problem by what is known now."""
        syncs = Syncs(
            self._syncs_s, self.request.sync_s or 0.0, self.sums_s, self._sync_curves()
        )
        return replace(self._probe_problem, loads=tuple(self._loads), sync=syncs)

    def _sync_curves(self) -> dict[frozenset[int], SyncCurve]:
        """The curve of each set of devices whose sync clearly depends on the split.

        Other sets keep one sync for all splits: if it varies only by chance, a plan would pick the
        luckiest split.
        """
        curves = {}
        for used, by_split in self._sync_points.items():
            syncs_s = [sync_s for _, sync_s in by_split.values()]
            step_s = min(map(sum, by_split.values()), default=0.0)
            if syncs_s and max(syncs_s) - min(syncs_s) > _SYNC_DIFFERS * step_s:
                curves[used] = SyncCurve.through(by_split.values())
        return curves

    def even_if_undecided(self, planned: Allocation) -> Allocation:
        """The even split if the probe can't tell whether the planned one is faster; else that one.

        The even split has the planned global batch. If the request leaves that free, it is rounded
        down to equal multiples. Equal devices whose times were measured within ± 3 % would
        otherwise get unequal batches by chance.
        """
        used = planned.split.used
        problem = self.problem
        smallest_step = problem.multiple * len(used)
        global_batch = planned.split.global_batch
        if self.request.global_batch is None:
            global_batch -= global_batch % smallest_step
        share, left_over = divmod(global_batch, len(used))
        least_limit = min(problem.loads[device].limit for device in used)
        if left_over or share % problem.multiple or not 0 < share <= least_limit:
            return planned
        batches = [0] * len(problem.loads)
        for device in used:
            batches[device] = share
        split = BatchSplit(tuple(batches))
        computes_s = tuple(problem.computes_s(split))
        even = Allocation(
            split, computes_s, problem.step_time_s(computes_s), planned.binds
        )
        gain = problem.value(planned) / problem.value(even) - 1
        # The probe shows only a gain that is larger than what it leaves unknown of every device.
        if gain > max(self._half_width(device, share) for device in used):
            return planned
        binds: list[Binds] = []
        for bound, batch, load in zip(
            planned.binds, batches, problem.loads, strict=True
        ):
            # The planned batch was the most that fits. With fewer samples memory no longer binds.
            has_room = bound == "memory" and 0 < batch < load.limit
            binds.append("speed" if has_room else bound)
        return replace(even, binds=tuple(binds))

    def _half_width(self, device: int, batch: int) -> float:
        """How exactly the probe knows a device's time at about this batch, at most 3 %.

        That is by the nearest measured batch, as a ratio: 64 is as near to 32 as to 128.
        """
        curve = self.probes[device].curve
        nearest = min(curve, key=lambda point: abs(math.log(point.batch / batch)))
        # The cap: a size that was measured badly must not hide a gain of more than 3 %.
        return min(LINE_WITHIN, nearest.half_width)

    def sync_s(self, split: BatchSplit) -> float | None:
        """Seconds of sync of the devices that a split uses; None if that is unknown.

        A device alone has none. Its plan reports what it avoids: the sync of all devices.
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
        load = self._probe_problem.loads[device]
        return load.compute_s(split.batches[device], split.micro_batches[device])

    def times_alone(self, split: BatchSplit, measurement: Measurement) -> float:
        """Compute time in a split over compute time alone, of the device that it slows least.

        It is 1 for a device alone, or if stamps are late.
        """
        if self.stamps_are_late or len(measurement.replicas) == 1:
            return 1.0
        return min(
            replica.compute_s / self.alone_s(replica.device, split)
            for replica in measurement.replicas
        )

    def alone_update_s(self, device: int) -> float:
        """A device's weight update in seconds, by its own probe."""
        return self._probe_problem.loads[device].update_s

    def is_measured_now(self, split: BatchSplit) -> bool:
        """Whether that split was measured at its devices' present speed."""
        measured_split = self._measured.get(split)
        return measured_split is not None and bool(measured_split.counted_measurements)

    def best(self, *, proven: bool = False) -> MeasuredSplit | None:
        """The fastest of the measured splits, or of the `proven` ones, or None.

        Only what was measured at the devices' present speed counts. Among splits whose values
        differ by less than 0.1 % it is the one with the smallest global batch: so chance does not
        decide, and a larger one costs learning progress that throughput does not show.

        A split above the limits that are known by now no longer fits; a proven one did fit.
        """
        fitting = self._fitting(proven=proven)
        max_value = max((one.value for one in fitting), default=0.0)
        equal_ones = [one for one in fitting if one.value >= (1 - _ALIKE) * max_value]
        return min(
            equal_ones,
            key=lambda one: (one.planned.split.global_batch, -one.value),
            default=None,
        )

    def most_uncertain_rival(self) -> MeasuredSplit | None:
        """Of the best split and its rivals, the one that is known least exactly.

        Another measurement of it may show which of them is the best. None without rivals, or if
        all of them were measured three times.
        """
        best = self.best()
        if best is None:
            return None
        rivals = []
        for measured_split in self._fitting():
            if measured_split is not best and _is_rival(measured_split, best):
                rivals.append(measured_split)
        if not rivals:
            return None
        unclear = [one for one in [*rivals, best] if one.may_be_measured_again]
        return max(unclear, key=attrgetter("relative_half_width"), default=None)

    def _fitting(self, *, proven: bool = False) -> list[MeasuredSplit]:
        """The measured splits that count and still fit, or are proven; if `proven`, only those."""
        fitting = []
        for measured_split in self._measured.values():
            fits = not proven and self.fits(measured_split.planned.split)
            if measured_split.counted_measurements and (measured_split.run or fits):
                fitting.append(measured_split)
        return fitting

    def fits(self, split: BatchSplit) -> bool:
        """Whether no device is given more at a time than the planner allows it by now."""
        pairs = zip(split.micro_batches, self._loads, strict=True)
        return all(size <= load.limit for size, load in pairs)

    def is_as_asked(self, split: BatchSplit) -> bool:
        """Whether it has the global batch and multiples asked for, and fits, if a margin was."""
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

    def moved(self, split: BatchSplit, measurement: Measurement) -> dict[int, float]:
        """The devices whose speed changed since this split was measured before.

        By device, the compute time now over that of then.
        """
        ratios: dict[int, float] = {}
        is_late = self.stamps_are_late or self._is_late(split, measurement)
        if not self._steady or not self.is_measured_now(split) or is_late:
            return ratios
        for earlier in self._measured[split].counted_measurements:
            unsure = earlier.step_time_s.relative_half_width
            unsure += measurement.step_time_s.relative_half_width
            for then, now in zip(earlier.replicas, measurement.replicas, strict=True):
                ratio = now.compute_s / then.compute_s
                if abs(ratio - 1) > _MOVED + unsure:
                    ratios[now.device] = ratio
        return ratios

    def _is_late(self, split: BatchSplit, measurement: Measurement) -> bool:
        """Whether a stamp came late, as on a busy machine.

        A device then seems to take a small part of what it took alone for the same batch.
        """
        return any(
            self.alone_s(replica.device, split) > _FASTER * replica.compute_s
            for replica in measurement.replicas
        )

    def _doubt_stamps(self) -> None:
        """Takes each step, past and to come, less the update, as compute of each of its devices."""
        self.stamps_are_late = True
        self._factors.clear()
        self._syncs_s.clear()
        self._sync_points.clear()
        for measured_split in self._measured.values():
            for measurement in measured_split.counted_measurements:
                self._learn_times(measured_split.planned.split, measurement)

    def _learn_factors(
        self, split: BatchSplit, measurement: Measurement
    ) -> tuple[float, ...]:
        """Notes how many times as long as alone each device computes; returns their computes."""
        usual_step_s = _usual_step_s(measurement)
        computes_s = []
        for replica in measurement.replicas:
            compute_s = replica.compute_s
            if self.stamps_are_late:
                compute_s = usual_step_s - replica.update_s
            factor = compute_s / self.alone_s(replica.device, split)
            self._factors[replica.device][split.micro_batches[replica.device]].append(
                factor
            )
            computes_s.append(compute_s)
        return tuple(computes_s)

    def learn(self, planned: Allocation, measurement: Measurement) -> None:
        """Takes in what a split gave. What a device gave at another speed no longer counts."""
        split = planned.split
        for device, ratio in self.moved(split, measurement).items():
            self._forget(device, ratio)
        known = self._measured.get(split) or MeasuredSplit(
            planned, (), self._probe_problem.objective
        )
        if not self.stamps_are_late and self._is_late(split, measurement):
            self._doubt_stamps()
        measurements = (*known.measurements, measurement)
        self._measured[split] = replace(
            known, planned=planned, measurements=measurements
        )
        self._learn_times(split, measurement)

    def _learn_times(self, split: BatchSplit, measurement: Measurement) -> None:
        """Takes in what a split's devices took, and what its gradients' sync did."""
        computes_s = self._learn_factors(split, measurement)
        busy_s = []
        for replica, compute_s in zip(measurement.replicas, computes_s, strict=True):
            device = replica.device
            self._loads[device] = replace(
                self._loads[device],
                model=self._model(device),
                update_s=replica.update_s,
            )
            busy_s.append(compute_s + replica.update_s)
        if len(busy_s) > 1 and self.request.sync_s is None:
            used = frozenset(split.used)
            self._syncs_s[used] = max(0.0, _usual_step_s(measurement) - max(busy_s))
            self._sync_points[used][split] = (max(busy_s), self._syncs_s[used])

    def fully_measured(self, split: BatchSplit) -> MeasuredSplit | None:
        """A split's measurements at any speed, if it was measured three times; else None.

        Then measuring it once more would not help.
        """
        if split not in self._measured:
            return None
        measured_split = replace(self._measured[split], since=0)
        if measured_split.may_be_measured_again:
            return None
        return measured_split

    def count_all(self) -> None:
        """Takes the machine for one that is not steady.

        All measurements of a split count then, at whatever speed.
        """
        self._steady = False
        self._changes.clear()
        for split, measured_split in self._measured.items():
            self._measured[split] = replace(measured_split, since=0)

    def forget_set(self, used: tuple[int, ...]) -> None:
        """Forgets what splits of exactly these devices gave.

        `balance` calls this when it chooses other packs for them: their sync differs from then on.
        """
        for split in list(self._measured):
            if split.used == used:
                del self._measured[split]
        self._syncs_s.pop(frozenset(used), None)
        self._sync_points.pop(frozenset(used), None)

    def _forget(self, device: int, ratio: float) -> None:
        """Makes a device's measurements stale; `ratio` is its compute time now over then."""
        self._changes[device] = ratio * self._changes.get(device, 1.0)
        del self._factors[device]
        for split in self._measured:
            if split.batches[device]:
                self._mark_stale(split)

    def _mark_stale(self, split: BatchSplit) -> None:
        measured_split = self._measured[split]
        since = len(measured_split.measurements)
        self._measured[split] = replace(measured_split, since=since)
        self._sync_points[frozenset(split.used)].pop(split, None)

    def _model(self, device: int) -> Line | Curve:
        """A device's compute time in joint runs, by micro-batch.

        A measured size takes its time alone times its mean factor, another size its time alone
        times `_factor_at`. A size that is off the line says little about its neighbours: points one
        multiple beside it keep the curve from bending elsewhere. No throughput above `_BELIEVED`
        times the best alone is believed: it comes from a late stamp, on a busy machine.
        """
        alone = self._probe_problem.loads[device].model
        limit = self._loads[device].limit
        multiple = self._probe_problem.multiple
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
    all_factors = factors.values()
    if max(all_factors) <= (1 + _FACTORS_DIFFER) * min(all_factors):
        return statistics.fmean(all_factors)
    total = 0.0
    weights = 0.0
    for measured, factor in factors.items():
        octaves = abs(math.log2(size / measured))
        weight = 1 / max(_NEAR_OCTAVES, octaves) ** 2
        total += weight * factor
        weights += weight
    return total / weights


def _usual_step_s(measurement: Measurement) -> float:
    """Step time without rare slow steps."""
    return measurement.step_time_s.median - measurement.slow_s


def _is_rival(other: MeasuredSplit, best: MeasuredSplit) -> bool:
    """Whether the other may be faster than the best by more than is worth a round."""
    doubt = math.hypot(other.relative_half_width, best.relative_half_width)
    return other.value / best.value - 1 + doubt > WORTH_A_ROUND
