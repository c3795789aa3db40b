"""The party of workers that a request needs."""

from __future__ import annotations

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.verdicts import KeptVerdicts
from gpubalance.settings.device import Device
from gpubalance.settings.requests import BalanceRequest, LayersRequest, RunRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Build
from gpubalance.workers.party import Party


def party_for(
    request: RunRequest | BalanceRequest | LayersRequest,
    watch: Watch,
    limit: TimeLimit,
    *devices: Device,
    purpose: str = "run",
    journal: Journal | None = None,
) -> Party:
    """A party of one worker for all of the request's devices, or for these.

    The `journal` keeps what it finds of models.
    """
    measuring = request.measuring
    return Party(
        devices or request.devices,
        build=build_for(request),
        purpose=purpose,
        deadline_s=measuring.deadline_s,
        limit=limit,
        tell=lambda text: watch(Doing(text)),
        verdicts=KeptVerdicts(journal) if journal else None,
    )


def build_for(request: RunRequest | BalanceRequest | LayersRequest) -> Build:
    """What the workers of a request build."""
    cuts = request.cuts if isinstance(request, LayersRequest) else None
    return Build(
        settings=request.settings, joint=request.joint, seed=request.measuring.seed, cuts=cuts
    )
