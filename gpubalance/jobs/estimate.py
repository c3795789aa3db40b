"""What `--dry-run` says: what a command would do, and about how long that would take."""

from __future__ import annotations

from gpubalance.jobs.durations import phases_of
from gpubalance.jobs.keep.probes import kept_probe
from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.jobs.plan.problem import best_split, check_asked
from gpubalance.jobs.probe.devices import phase_names
from gpubalance.results.estimate import Estimate
from gpubalance.settings.queueing import QueueRequest
from gpubalance.settings.record import Record
from gpubalance.settings.requests import (
    BalanceRequest,
    LayersRequest,
    MeasureRequest,
    ProbeRequest,
)


def estimate(request: MeasureRequest) -> Estimate:
    """What the command would do, and about how long it would take; no device is used.

    Raises UsageError and NothingFits for what is not possible, by what is known before anything is
    measured.
    """
    if isinstance(request, ProbeRequest | BalanceRequest):
        check_asked(request)
    phases = phases_of(request)
    probe = None
    uncut = request.uncut if isinstance(request, LayersRequest) else request
    if isinstance(uncut, BalanceRequest):
        probe = kept_probe(uncut)
        if probe is not None:
            probing = phase_names(uncut.probe)
            phases = [phase for phase in phases if phase.name not in probing]
    if isinstance(request, BalanceRequest) and probe is not None:
        best_split(DeviceEstimates(probe, request.devices, request.plan).problem)
    return Estimate(
        kind=_kind_of(request),
        request=request,
        probed=probe and probe.created,
        phases=tuple(phases),
        seconds=sum(phase.seconds for phase in phases),
    )


def estimate_of_queue(request: QueueRequest) -> Estimate:
    """The commands that a queue would run."""
    return Estimate(
        kind=_kind_of(request), request=request, probed=None, phases=(), seconds=None
    )


def _kind_of(request: Record) -> str:
    """`balance-estimate`."""
    return f"{type(request).__name__.removesuffix('Request').lower()}-estimate"
