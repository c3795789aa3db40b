"""The phases of a balance, and about how long each takes, for `--dry-run` and for its progress."""

from __future__ import annotations

from dataclasses import replace

from gpubalance.jobs.balance.probing import kept_probe
from gpubalance.jobs.events import Event, PhaseBegun, TimeLeft, Watch
from gpubalance.jobs.measure.expected import TRACING_S, WORKER_S, proof_s, short_window_s, step_s
from gpubalance.jobs.plan.plan import plan
from gpubalance.jobs.plan.problem import check_global_batch
from gpubalance.jobs.probe.estimate import estimate as probe_estimate
from gpubalance.jobs.probe.estimate import queues
from gpubalance.planning.problem import Allocation
from gpubalance.results.estimate import BalanceEstimate, PhaseEstimate
from gpubalance.results.probe import Probe
from gpubalance.settings.requests import BalanceRequest

_ROUNDS, _PROOF = "rounds", "proof"
_USUAL_ROUNDS = 2  # that are measured; one that runs out of memory ends at once
_SETTLING_STEPS = 6
_PIPELINE_S = 8.0  # alone; changes are tried only if it is too slow
_LOADED_S = 1.0  # a worker that loaded TensorFlow during the last device's probe


def estimate(request: BalanceRequest) -> BalanceEstimate:
    """Estimates a balance without using a device. Raises what `plan` does if there is a probe."""
    probe = kept_probe(request)
    check_global_batch(request.plan, request.probe.batch_multiple)
    phases = [] if probe else of_probe(request)
    joint_step_s, divided = _joint(request, probe)
    phases += [
        PhaseEstimate(
            name=_ROUNDS, seconds=round(rounds_s(request, joint_step_s, loaded=probe is None and request.probe.ahead))
        ),
        PhaseEstimate(
            name=_PROOF, seconds=round(proof_in_s(request, joint_step_s, len(request.devices), divided=divided))
        ),
    ]
    return BalanceEstimate(
        request=request,
        probed=probe.created if probe else None,
        phases=tuple(phases),
        seconds=sum(phase.seconds for phase in phases),
    )


def of_probe(request: BalanceRequest) -> list[PhaseEstimate]:
    """Each device's part of the probe that a balance makes, or one phase for all if hosts are probed at once."""
    expected = probe_estimate(request.probe)
    if len(queues(request.probe)) > 1:
        return [PhaseEstimate(name="all hosts at once", seconds=round(expected.seconds))]
    return [
        PhaseEstimate(name=f"{request.devices[one.device].label} alone", seconds=one.seconds)
        for one in expected.devices
    ]


def rounds_s(request: BalanceRequest, joint_step_s: float, done: int = 0, *, loaded: bool = False) -> float:
    """Seconds of the usual rounds, of one more if those are done; the first round waits for a worker."""
    measured_s = max(request.round_s or 0.0, short_window_s(joint_step_s))
    rounds = max(1, min(request.rounds, _USUAL_ROUNDS) - done)
    each_s = _SETTLING_STEPS * joint_step_s + measured_s + (TRACING_S if request.settings.xla else 0.0)
    return rounds * each_s + (0.0 if done else TRACING_S + (_LOADED_S if loaded else WORKER_S))


def proof_in_s(request: BalanceRequest, joint_step_s: float, devices: int, *, divided: bool = False) -> float:
    """Seconds of a proof with the rounds' worker, and of measuring the user's input pipeline if there is one."""
    pipeline_s = _PIPELINE_S if request.settings.data else 0.0
    return pipeline_s + proof_s(request.measuring, joint_step_s, even=devices > 1, divided=divided, warm=True)


def _joint(request: BalanceRequest, probe: Probe | None) -> tuple[float, bool]:
    """A joint step's seconds, and whether its even split does not fit in one piece.

    Both come from a plan by the probe; without a probe, all wait for the device that is first at its memory limit.
    """
    if probe is not None:
        predicted = plan(probe, request.devices, request.plan).predicted
        return predicted.step_time_s, predicted.largest_even is not None
    devices = probe_estimate(request.probe).devices
    full = [step_s(request.devices[one.device], one.limit) for one in devices]
    limits = [one.limit for one in devices]
    return min(full) + request.joint.sync_s, sum(limits) > len(limits) * min(limits)


class Phases:
    """Emits which phase of a balance begins, and how long it and the rest will take by what is known then."""

    def __init__(self, request: BalanceRequest, watch: Watch) -> None:
        self._request = request
        self._watch = watch
        self._of_probe = 0
        self._now = ""

    def tell(self, event: Event) -> None:
        """Passes on an event of the probe, whose phases come first in the balance."""
        if isinstance(event, PhaseBegun):
            self._of_probe = event.of
            joint_step_s, divided = _joint(self._request, None)
            then_s = rounds_s(self._request, joint_step_s, loaded=self._request.probe.ahead)
            then_s += proof_in_s(self._request, joint_step_s, len(self._request.devices), divided=divided)
            event = replace(event, of=event.of + 2, left_s=event.left_s + then_s)
        self._watch(event)

    def round(self, planned: Allocation, done: int) -> None:
        """A round with that split begins, after `done` others."""
        seconds = rounds_s(self._request, planned.step_time_s, done)
        self._begin(_ROUNDS, 1, seconds, seconds + self._proof_s(planned))

    def proof(self, planned: Allocation) -> None:
        """A proof of that split begins."""
        seconds = self._proof_s(planned)
        self._begin(_PROOF, 2, seconds, seconds)

    def _proof_s(self, planned: Allocation) -> float:
        split, devices = planned.split, len(planned.split.used)
        shares = zip(split.batches, planned.binds, strict=True)
        divided = any(binds == "memory" and batch < split.global_batch / devices for batch, binds in shares)
        return proof_in_s(self._request, planned.step_time_s, devices, divided=divided)

    def _begin(self, name: str, number: int, seconds: float, left_s: float) -> None:
        if name == self._now:
            self._watch(TimeLeft(left_s))
        else:
            self._watch(PhaseBegun(name, self._of_probe + number, self._of_probe + 2, seconds, left_s))
        self._now = name
