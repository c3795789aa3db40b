"""What is known of devices: what their probe said, corrected by every measurement of
them together.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpubalance.jobs.keep.saved import holds_nothing
from gpubalance.jobs.plan.problem import find_probes, problem_of
from gpubalance.numbers.stats import half_width, median
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import Allocation, Objective, Problem, throughput
from gpubalance.planning.sync import Syncs
from gpubalance.results.gap import DeviceRun, SoloGap, divide_gap
from gpubalance.results.probe import Probe
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.device import Device
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.shares import Shares

# A device whose time in the same split changes by more than this part, beyond the uncertainty of
# both measurements, has changed its speed. In another split the step-time model may be wrong
# instead.
_MOVED = 0.05
# A split that promises less than this part more is not worth a round, nor is less uncertainty than
# that.
WORTH_A_ROUND = 0.005
_ALIKE = 0.001  # of throughput: splits that differ by less count as equal
# Measurements of a split to tell it from another: on some machines that never succeeds.
_MOST_SEEN = 3


@dataclass(frozen=True)
class Tried:
    """A split as planned, and its measurements; a `Run` among them is a proof.

    Those before the number `since` are of another speed of its devices, and do not count.
    """

    planned: Allocation
    all: tuple[Measurement, ...]
    objective: Objective = throughput
    since: int = 0

    @property
    def seen(self) -> tuple[Measurement, ...]:
        """Its measurements at the devices' present speed."""
        return self.all[self.since :]

    @property
    def run(self) -> Run | None:
        """Its latest proof, or None."""
        return next((one for one in reversed(self.seen) if isinstance(one, Run)), None)

    @cached_property
    def value(self) -> float:
        """Its value by the objective, such as samples per second, over all its measurements.

        Without rare slow steps: they are no split's own, and no model predicts them.
        """
        return float(self.objective(self.planned.split.global_batch, median(self._samples)))

    @cached_property
    def relative_half_width(self) -> float:
        """Half the 95 % interval of its step time, as a part of it."""
        return half_width(self._samples) or 0.0

    @property
    def may_be_seen_again(self) -> bool:
        """Whether another measurement may still help."""
        return len(self.seen) < _MOST_SEEN

    def may_give(self, value: float) -> bool:
        """Whether it may turn out to have this value if it is measured once more."""
        return self.may_be_seen_again and value < (1 + self.relative_half_width) * self.value

    @property
    def _samples(self) -> list[float]:
        usual = ((one, 1 - one.slow_s / one.step_time_s.median) for one in self.seen)
        return [part * sample for one, part in usual for sample in one.step_time_s.samples]

    @property
    def as_measured(self) -> Allocation:
        """The split with the times of its proof, else of its latest measurement."""
        measured = self.run or self.seen[-1]
        computes = {replica.device: replica.compute_s for replica in measured.replicas}
        compute_s = tuple(
            computes.get(device, 0.0) for device in range(len(self.planned.split.batches))
        )
        return replace(self.planned, compute_s=compute_s, step_time_s=measured.step_time_s.median)


class DeviceEstimates:
    """What the probe says of the devices, corrected by every measurement of them together.

    A measured split counts with what was measured, whatever a model says, while its devices keep
    their speed. Raises what `find_probes` and `problem_of` do.
    """

    def __init__(self, probe: Probe, devices: Sequence[Device], request: PlanRequest) -> None:
        self.probe, self.devices, self.request = probe, tuple(devices), request
        self.probes = find_probes(probe, devices)
        self._asked = problem_of(probe, self.probes, request)
        self._alone = self._asked.loads
        self._loads = list(self._alone)
        self._syncs_s: dict[frozenset[int], float] = {}  # of each set of devices, as last measured
        self._tried: dict[Shares, Tried] = {}
        self._steady = True  # whether a device that changed its speed keeps the new one
        # For each device at its present speed, by micro-batch: its compute times together over
        # those alone.
        self._factors: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._changes: dict[int, float] = {}

    @property
    def problem(self) -> Problem:
        """The solver's problem by what is known now."""
        syncs = Syncs(self._syncs_s, self.request.sync_s or 0.0)
        return replace(self._asked, loads=tuple(self._loads), sync=syncs)

    def sync_s(self, split: Shares) -> float | None:
        """Seconds of sync of the devices that a split uses, of all devices if that is one; None if
        it is unknown.
        """
        if self.request.sync_s is None and not self._syncs_s:
            return None
        used = split.used if len(split.used) > 1 else range(len(self.devices))
        return self.problem.sync.of({*used})

    def tried_without(self, split: Shares) -> list[int]:
        """The devices that a split leaves out of the smallest set around its own whose sync is
        known.
        """
        used = {*split.used}
        return sorted(self.problem.sync.around(used) - used) if len(used) > 1 else []

    def alone_s(self, device: int, split: Shares) -> float:
        """A device's compute time in seconds for its part of a split, by its own probe."""
        return self._alone[device].compute_s(split.batches[device], split.micro_batches[device])

    def has(self, split: Shares) -> bool:
        """Whether that split was measured at its devices' present speed."""
        return split in self._tried and bool(self._tried[split].seen)

    def best(self, *, proven: bool = False) -> Tried | None:
        """The fastest of the measured splits, or of the `proven` ones, at the present speed; None
        if there is none.

        Among splits that measurements can't tell apart it is the one with the smallest global
        batch: so chance does not decide, and a larger one costs learning progress that throughput
        does not show.

        A split above the limits that are known by now no longer fits; a proven one did fit.
        """
        tried = self._fitting(proven=proven)
        fastest = max((one.value for one in tried), default=0.0)
        alike = [one for one in tried if one.value >= (1 - _ALIKE) * fastest]
        return min(
            alike, key=lambda one: (one.planned.split.global_batch, -one.value), default=None
        )

    def in_doubt(self) -> Tried | None:
        """The split to measure once more, the least exactly known of the best and its rivals; None
        without rivals.

        A rival may be faster than the best by more than is worth a round. If it measured faster, as
        the best is not always the fastest, that difference counts too.
        """
        best, rivals = self.best(), []
        if best is None:
            return None
        for one in self._fitting():
            relative_half_width, faster = (
                math.hypot(one.relative_half_width, best.relative_half_width),
                one.value / best.value - 1,
            )
            if (
                one is not best
                and relative_half_width + max(0.0, faster) > WORTH_A_ROUND
                and -faster < relative_half_width
            ):
                rivals.append(one)
        may_help = [one for one in (*rivals, best) if rivals and one.may_be_seen_again]
        return max(may_help, key=lambda one: one.relative_half_width, default=None)

    def _fitting(self, *, proven: bool = False) -> list[Tried]:
        present = [one for one in self._tried.values() if one.seen]
        return [one for one in present if one.run or (not proven and self.fits(one.planned.split))]

    def fits(self, split: Shares) -> bool:
        """Whether no device is given more at a time than the planner allows it by now."""
        return all(
            size <= load.limit for size, load in zip(split.micro_batches, self._loads, strict=True)
        )

    def ran_out(self, split: Shares, limits: Iterable[tuple[int, int]]) -> None:
        """Forgets a split that ran out of memory, and lowers its devices' limits to (device,
        micro-batch).
        """
        self._tried.pop(split, None)
        for device, limit in limits:
            load = self._loads[device]
            self._loads[device] = replace(load, limit=min(load.limit, limit))

    def moved(self, split: Shares, measured: Measurement) -> dict[int, float]:
        """The devices whose speed changed since an earlier measurement of this split: compute time
        now over then.
        """
        found = {}
        for before in self._tried[split].seen if self._steady and self.has(split) else ():
            relative_half_width = (
                before.step_time_s.relative_half_width + measured.step_time_s.relative_half_width
            )
            for then, now in zip(before.replicas, measured.replicas, strict=True):
                ratio = now.compute_s / then.compute_s
                if abs(ratio - 1) > _MOVED + relative_half_width:
                    found[now.device] = ratio
        return found

    def learn(self, planned: Allocation, measured: Measurement) -> None:
        """Takes in what a split gave. What devices with another speed gave before is forgotten."""
        split = planned.split
        for device, ratio in self.moved(split, measured).items():
            self._forget(device, ratio)
        tried = self._tried.get(split) or Tried(planned, (), self.problem.objective)
        self._tried[split] = replace(tried, planned=planned, all=(*tried.all, measured))
        for replica in measured.replicas:
            device = replica.device
            factor = replica.compute_s / self.alone_s(device, split)
            self._factors[device][split.micro_batches[device]].append(factor)
            model, load = self._model(device), self._loads[device]
            self._loads[device] = replace(load, model=model, update_s=replica.update_s)
        if len(measured.replicas) > 1 and self.request.sync_s is None:
            usual_s = measured.step_time_s.median - measured.slow_s
            sync_s = max(0.0, usual_s - max(r.busy_s for r in measured.replicas))
            self._syncs_s[frozenset(split.used)] = sync_s

    def too_often(self, split: Shares) -> Tried | None:
        """All that was measured of a split, if another measurement of it would help no more; else
        None.
        """
        tried = self._tried.get(split)
        every = tried and replace(tried, since=0)
        return None if every is None or every.may_be_seen_again else every

    def count_all(self) -> None:
        """Takes the machine for one that is not steady: all measurements of a split count, at
        whatever speed.
        """
        self._steady = False
        self._changes.clear()
        self._tried = {split: replace(tried, since=0) for split, tried in self._tried.items()}

    def forget_together(self) -> None:
        """Forgets what splits of several devices gave: from now on their gradients are summed in
        another way.
        """
        for split, tried in self._tried.items():
            if len(split.used) > 1:
                self._tried[split] = replace(tried, since=len(tried.all))
        self._syncs_s.clear()

    def _forget(self, device: int, ratio: float) -> None:
        self._changes[device] = ratio * self._changes.get(device, 1.0)
        del self._factors[device]
        for split, tried in self._tried.items():
            if split.batches[device]:
                self._tried[split] = replace(tried, since=len(tried.all))

    def _model(self, device: int) -> Line | Curve:
        """Its step time: measured sizes take what they took in joint runs, others their time alone
        times the mean factor of those.

        A size that is off the line says little about its neighbours: the curve bends only right
        beside it.
        """
        alone, step, limit = (
            self._alone[device].model,
            self.problem.multiple,
            self._loads[device].limit,
        )
        factors = {size: statistics.fmean(seen) for size, seen in self._factors[device].items()}
        mean = statistics.fmean(factors.values())
        known = alone.batches if isinstance(alone, Curve) else ()
        beside = (size + by for size in factors for by in (-step, step))
        sizes = sorted(
            {size for size in (step, limit, *known, *beside) if 0 < size <= limit} | factors.keys()
        )
        return Curve(
            tuple(sizes), tuple(factors.get(size, mean) * alone.step_time_s(size) for size in sizes)
        )

    def changed(self) -> Iterator[tuple[int, float]]:
        """Each device whose speed changed since its first joint measurement, and the part by which
        it is slower.
        """
        for device, ratio in sorted(self._changes.items()):
            if abs(ratio - 1) > _MOVED:
                yield device, ratio - 1

    def solo_gap(self, split: Shares, run: Run) -> SoloGap | None:
        """Why a run gave less than the devices alone; None if a device's best alone is unknown."""
        busy_s = {replica.device: replica.busy_s for replica in run.replicas}
        ran = []
        for device, (one, batch) in enumerate(zip(self.probes, split.batches, strict=True)):
            if one.solo_best is None and not holds_nothing(one):
                return None
            best = one.solo_best.throughput if one.solo_best else 0.0
            alone_s = self.alone_s(device, split) + self._alone[device].update_s
            ran.append(DeviceRun(best, batch, alone_s, busy_s.get(device, 0.0)))
        return divide_gap(ran, run.step_time_s.median, run.slow_s)
