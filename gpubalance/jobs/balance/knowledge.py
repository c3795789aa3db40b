"""What `balance` knows of its devices: what the probe said, corrected by every measurement of them together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpubalance.jobs.keep.saved_probes import holds_nothing
from gpubalance.jobs.plan import loads_of, problem_of
from gpubalance.planning.problem import Allocation, Problem
from gpubalance.results.gap import Ran, SoloGap, divide_gap
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.requests import PlanRequest
from gpubalance.settings.shares import Shares, pieces

# A device that takes this much longer or shorter than before with the same batch has changed its speed; with another
# batch the step-time model may be what is wrong.
_MOVED = 0.05
_MOVED_ELSEWHERE = 0.15


@dataclass(frozen=True)
class _Seen:
    """A device in a measurement: how slow it was, by what it was alone."""

    batch: int
    micro_batch: int
    factor: float


class Knowledge:
    """What is known of the devices: the probe's, corrected by every measurement of them together."""

    def __init__(self, probe: Probe, probes: Sequence[DeviceProbe], request: PlanRequest) -> None:
        self._probe = probe
        self._probes = tuple(probes)
        self._request = request
        self.alone = loads_of(probe, probes, request)
        self.loads = self.alone
        self.sync_s = request.sync_s
        self._seen: dict[int, list[_Seen]] = defaultdict(list)

    @property
    def request(self) -> PlanRequest:
        """What is wanted, with the sync that is known now."""
        return self._request.model_copy(update={"sync_s": self.sync_s})

    @property
    def problem(self) -> Problem:
        """What is asked of the solver now."""
        return problem_of(self.loads, self._probe, self.request)

    @property
    def limits(self) -> list[int]:
        """The largest micro-batch of each device, as far as is known now."""
        return [load.limit for load in self.loads]

    def compute_s(self, device: int, split: Shares, *, alone: bool = False) -> float:
        """A device's compute time for its part of a split, by what is known now or was known of it alone."""
        model = (self.alone if alone else self.loads)[device].model
        parts = pieces(split.batches[device], split.micro_batches[device])
        return sum(count * model.step_time_s(size) for count, size in parts)

    def again(self, planned: Allocation) -> Allocation:
        """The same split, with the times that are known now."""
        split = planned.split
        computes = tuple(self.compute_s(device, split) for device in range(len(split.batches)))
        busy_s = max(computes[device] + self.loads[device].update_s for device in split.used)
        sync_s = (self.sync_s or 0.0) if len(split.used) > 1 else 0.0
        return replace(planned, compute_s=computes, step_time_s=busy_s + sync_s)

    def learn(self, split: Shares, measured: Measurement) -> None:
        """Scales each device's compute so that it is what was measured, and takes the update and sync that were."""
        loads = list(self.loads)
        for replica in measured.replicas:
            device = replica.device
            factor = replica.compute_s / self.compute_s(device, split, alone=True)
            self._seen[device].append(_Seen(split.batches[device], split.micro_batches[device], factor))
            model = self.alone[device].model.scaled(factor)
            loads[device] = replace(loads[device], model=model, update_s=replica.update_s or 0.0)
        self.loads = tuple(loads)
        if len(measured.replicas) > 1:
            self.sync_s = max(0.0, measured.step_time_s.median - max(r.busy_s for r in measured.replicas))

    def moved(self) -> Iterator[tuple[int, float]]:
        """Each device whose speed is not what it was when first measured together, and by what part it is slower."""
        for device, seen in sorted(self._seen.items()):
            now = seen[-1]
            alike = [one for one in seen if (one.batch, one.micro_batch) == (now.batch, now.micro_batch)]
            changes = (now.factor / alike[0].factor - 1, _MOVED), (now.factor / seen[0].factor - 1, _MOVED_ELSEWHERE)
            shown = [change for change, least in changes if abs(change) > least]
            if shown:
                yield device, max(shown, key=abs)

    def step_back(self, device: int, limit: int) -> None:
        """A device holds no larger micro-batch in a joint run."""
        loads = list(self.loads)
        loads[device] = replace(loads[device], limit=min(loads[device].limit, limit))
        self.loads = tuple(loads)

    def solo_gap(self, split: Shares, run: Run) -> SoloGap | None:
        """Why a run gave less than the devices alone; null where a device's best alone is not known."""
        busy_s = {replica.device: replica.busy_s for replica in run.replicas}
        ran = []
        for device, (one, batch) in enumerate(zip(self._probes, split.batches, strict=True)):
            if one.solo_best is None and not holds_nothing(one):
                return None
            best = one.solo_best.throughput if one.solo_best else 0.0
            alone_s = self.compute_s(device, split, alone=True) + self.alone[device].update_s
            ran.append(Ran(best, batch, alone_s, busy_s.get(device, 0.0)))
        return divide_gap(ran, run.step_time_s.median)
