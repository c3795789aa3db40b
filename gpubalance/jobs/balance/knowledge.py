"""What `balance` knows of its devices: what the probe said, corrected by every measurement of them together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpubalance.jobs.keep.saved_probes import holds_nothing
from gpubalance.jobs.plan import loads_of, problem_of
from gpubalance.planning.model import Curve, Line, monotone_curve
from gpubalance.planning.problem import Allocation, Problem
from gpubalance.results.common import StepTime
from gpubalance.results.gap import Ran, SoloGap, divide_gap
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.requests import PlanRequest
from gpubalance.settings.shares import Shares, pieces

# A device that takes this much longer or shorter than before in the same split, beyond what both measurements leave
# open, has changed its speed. In another split it may be the step-time model that is wrong.
_MOVED = 0.05


@dataclass(frozen=True)
class Tried:
    """A split as it was planned, and what it gave each time at the devices' present speed; a `Run` is a proof of it."""

    planned: Allocation
    seen: tuple[Measurement | Run, ...]

    @property
    def measured(self) -> Measurement | Run:
        """The last that was seen of it: a proof comes after a round."""
        return self.seen[-1]

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.measured.throughput.median

    @property
    def run(self) -> Run | None:
        """Its proof, where it has one."""
        return self.measured if isinstance(self.measured, Run) else None

    @property
    def as_measured(self) -> Allocation:
        """The split with the times that it took."""
        computes = [0.0] * len(self.planned.split.batches)
        for replica in self.measured.replicas:
            computes[replica.device] = replica.compute_s
        return replace(self.planned, compute_s=tuple(computes), step_time_s=self.measured.step_time_s.median)


class Knowledge:
    """What is known of the devices: the probe's, corrected by every measurement of them together.

    A measured split gives what was measured of it, whatever a model says, as long as its devices keep their speed.
    """

    def __init__(self, probe: Probe, probes: Sequence[DeviceProbe], request: PlanRequest) -> None:
        self._probe = probe
        self._probes = tuple(probes)
        self._request = request
        self._alone = loads_of(probe, probes, request)
        self._loads = self._alone
        self._sync_s = request.sync_s
        self._tried: dict[Shares, Tried] = {}
        # Of each device at its present speed, by micro-batch: how slow it is by what it was alone.
        self._factors: dict[int, dict[int, float]] = defaultdict(dict)
        self._changes: dict[int, float] = {}

    @property
    def request(self) -> PlanRequest:
        """What is wanted, with the sync that is known now."""
        return self._request.model_copy(update={"sync_s": self._sync_s})

    @property
    def problem(self) -> Problem:
        """What is asked of the solver now."""
        return problem_of(self._loads, self._probe, self.request)

    def alone_s(self, device: int, split: Shares) -> float:
        """A device's compute time for its part of a split, by what was known of it alone."""
        model = self._alone[device].model
        parts = pieces(split.batches[device], split.micro_batches[device])
        return sum(count * model.step_time_s(size) for count, size in parts)

    def has(self, split: Shares) -> bool:
        """Whether that split was measured at its devices' present speed."""
        return split in self._tried

    def best(self, *, proven: bool = False) -> Tried | None:
        """The fastest of the splits that were measured, or of those that were `proven`, at the present speed.

        One that is larger than the limits that are known now does not fit: it has run out of memory since. What was
        proven did fit.
        """
        fitting = [one for one in self._tried.values() if one.run or (not proven and self._fits(one.planned.split))]
        return max(fitting, key=lambda one: one.rate, default=None)

    def _fits(self, split: Shares) -> bool:
        return all(size <= load.limit for size, load in zip(split.micro_batches, self._loads, strict=True))

    def ran_out(self, split: Shares, limits: Iterable[tuple[int, int]]) -> None:
        """A split ran out of memory, whatever it gave before: these devices hold no larger micro-batch together."""
        self._tried.pop(split, None)
        loads = list(self._loads)
        for device, limit in limits:
            loads[device] = replace(loads[device], limit=min(loads[device].limit, limit))
        self._loads = tuple(loads)

    def moved(self, split: Shares, measured: Measurement | Run) -> dict[int, float]:
        """Each device that is not as fast as any time before in this same split, and how slow it is by what it was."""
        tried = self._tried.get(split)
        found = {}
        for before in tried.seen if tried else ():
            open_part = sum(_half_part(one.step_time_s) for one in (before, measured))
            for then, now in zip(before.replicas, measured.replicas, strict=True):
                ratio = now.compute_s / then.compute_s
                if abs(ratio - 1) > _MOVED + open_part:
                    found[now.device] = ratio
        return found

    def learn(self, planned: Allocation, measured: Measurement | Run) -> None:
        """Takes what a split gave. What a device gave before that is no longer as fast is forgotten."""
        split = planned.split
        self._forget(self.moved(split, measured))
        before = self._tried.get(split)
        self._tried[split] = Tried(planned, (*(before.seen if before else ()), measured))
        loads = list(self._loads)
        for replica in measured.replicas:
            device = replica.device
            factor = replica.compute_s / self.alone_s(device, split)
            self._factors[device][split.micro_batches[device]] = factor
            loads[device] = replace(loads[device], model=self._model(device), update_s=replica.update_s or 0.0)
        self._loads = tuple(loads)
        if len(measured.replicas) > 1:
            self._sync_s = max(0.0, measured.step_time_s.median - max(r.busy_s for r in measured.replicas))

    def _forget(self, moved: Mapping[int, float]) -> None:
        for device, ratio in moved.items():
            self._changes[device] = ratio * self._changes.get(device, 1.0)
            self._factors[device] = {}
        self._tried = {split: tried for split, tried in self._tried.items() if not moved.keys() & set(split.used)}

    def _model(self, device: int) -> Line | Curve:
        """Its step time: what was measured of it in joint runs at those sizes, and else its own alone, by how slow it
        was on average.

        A size that is off the line says little of the sizes beside it.
        """
        alone, factors = self._alone[device], self._factors[device]
        mean = sum(factors.values()) / len(factors)
        step = self.problem.multiple
        near = {size + by for size in factors for by in (-step, step)}
        known = alone.model.batches if isinstance(alone.model, Curve) else (step, alone.limit)
        sizes = {size for size in (*known, *near) if size > 0} | factors.keys()
        return monotone_curve([(s, factors.get(s, mean) * alone.model.step_time_s(s)) for s in sizes])

    def changed(self) -> Iterator[tuple[int, float]]:
        """Each device that is not as fast as when it was first measured together, and by what part it is slower."""
        for device, ratio in sorted(self._changes.items()):
            if abs(ratio - 1) > _MOVED:
                yield device, ratio - 1

    def solo_gap(self, split: Shares, run: Run) -> SoloGap | None:
        """Why a run gave less than the devices alone; null where a device's best alone is not known."""
        busy_s = {replica.device: replica.busy_s for replica in run.replicas}
        ran = []
        for device, (one, batch) in enumerate(zip(self._probes, split.batches, strict=True)):
            if one.solo_best is None and not holds_nothing(one):
                return None
            best = one.solo_best.throughput if one.solo_best else 0.0
            alone_s = self.alone_s(device, split) + self._alone[device].update_s
            ran.append(Ran(best, batch, alone_s, busy_s.get(device, 0.0)))
        return divide_gap(ran, run.step_time_s.median)


def _half_part(step: StepTime) -> float:
    """Half the 95 % interval as a part of the median, 0 where it is not known."""
    return (step.ci95[1] - step.ci95[0]) / 2 / step.median if step.ci95 else 0.0
