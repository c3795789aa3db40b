"""The phases of `layers`, and about how long each takes, for `--dry-run` and for its progress."""

from __future__ import annotations

from dataclasses import replace

from gpubalance.jobs.balance.estimate import of_probe
from gpubalance.jobs.balance.probing import kept_probe
from gpubalance.jobs.events import Event, PhaseBegun, TimeLeft, Watch
from gpubalance.jobs.layers.known import Planned
from gpubalance.jobs.measure.expected import WORKER_S, windows_s
from gpubalance.results.estimate import LayersEstimate, PhaseEstimate
from gpubalance.settings.requests import LayersRequest

# Measured with 19 blocks on simulated devices; most of the time goes to tracing each of them.
_BLOCKS_S, _TRACING_S = 12.0, 6.0
_GUESSED_STEP_S = 0.5
_ROUNDS = 2  # usually
_WARM_UP_STEPS = 8
_OWN = ("blocks", "rounds", "proof")


def estimate(request: LayersRequest) -> LayersEstimate:
    """Estimates `layers` without using a device."""
    probe = kept_probe(request.uncut)
    own = [PhaseEstimate(name=name, seconds=round(_seconds(request, name, _GUESSED_STEP_S))) for name in _OWN]
    phases = (*([] if probe else of_probe(request.uncut)), *own)
    return LayersEstimate(
        request=request,
        probed=probe.created if probe else None,
        phases=phases,
        seconds=sum(phase.seconds for phase in phases),
    )


def _seconds(request: LayersRequest, name: str, step_s: float) -> float:
    warm_up_s = _WARM_UP_STEPS * step_s
    if name == "blocks":
        return len(request.devices) * (WORKER_S + _BLOCKS_S)
    if name == "rounds":
        return WORKER_S + min(_ROUNDS, request.rounds) * (_TRACING_S + warm_up_s + request.round_s)
    return warm_up_s + windows_s(request.measuring, [step_s], request.measuring.windows)


class Phases:
    """Emits which phase begins, and how long it and the rest will take by what is known then."""

    def __init__(self, request: LayersRequest, watch: Watch) -> None:
        self._request = request
        self._watch = watch
        self._of_probe = 0
        self._step_s = _GUESSED_STEP_S
        self._now = ""

    def tell(self, event: Event) -> None:
        """Passes on an event of the probe, whose phases come first."""
        if isinstance(event, PhaseBegun):
            self._of_probe = event.of
            left_s = event.left_s + sum(map(self._seconds, _OWN))
            event = replace(event, of=event.of + len(_OWN), left_s=left_s)
        self._watch(event)

    def blocks(self) -> None:
        """The measuring of the blocks begins."""
        self._begin("blocks")

    def round(self, planned: Planned) -> None:
        """A round with that cut begins."""
        self._step_s = planned.placement.timeline.step_time_s
        self._begin("rounds")

    def proof(self, planned: Planned) -> None:
        """A proof of that cut begins."""
        self._step_s = planned.placement.timeline.step_time_s
        self._begin("proof")

    def _begin(self, name: str) -> None:
        number = _OWN.index(name)
        left_s = sum(map(self._seconds, _OWN[number:]))
        if name == self._now:
            self._watch(TimeLeft(left_s))
        else:
            of = self._of_probe + len(_OWN)
            self._watch(PhaseBegun(name, self._of_probe + number + 1, of, self._seconds(name), left_s))
        self._now = name

    def _seconds(self, name: str) -> float:
        return _seconds(self._request, name, self._step_s)
