"""The workers that a request needs, as a group, and the check of the model that they have."""

from __future__ import annotations

import shlex

from gpubalance.devices.planned import check_model
from gpubalance.jobs.endings import raise_if_refused
from gpubalance.jobs.events import Starting, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.kept_rules import KeptRules
from gpubalance.results.common import Model
from gpubalance.settings.device import Device
from gpubalance.settings.requests import BalanceRequest, LayersRequest, RunRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Build, Ready
from gpubalance.workers.worker_group import WorkerGroup


def group_for(
    request: RunRequest | BalanceRequest | LayersRequest,
    watch: Watch,
    limit: TimeLimit,
    *devices: Device,
    purpose: str = "run",
    journal: Journal | None = None,
) -> WorkerGroup:
    """A group of one worker for all of the request's devices, or for these.

    The `journal` keeps what it finds of models.
    """
    measuring = request.measuring
    return WorkerGroup(
        devices or request.devices,
        build=build_for(request),
        purpose=purpose,
        deadline_s=measuring.deadline_s,
        limit=limit,
        report=lambda text: watch(Starting(text)),
        kept_rules=KeptRules(journal) if journal else None,
    )


def build_for(request: RunRequest | BalanceRequest | LayersRequest) -> Build:
    """What the workers of a request build."""
    cuts = request.cuts if isinstance(request, LayersRequest) else None
    return Build(
        settings=request.settings,
        joint=request.joint,
        seed=request.measuring.seed,
        cuts=cuts,
    )


def check_facts(facts: Ready, request: RunRequest, planned: Model | None) -> None:
    """Checks what the workers of a run say of its model.

    Raises PlanMismatch for a model that was not planned, BadInput if no split trains it.
    """
    name = shlex.quote(request.settings.model)
    another = f"make a plan for this model: gpubalance balance --model {name}"
    check_model(planned, facts.model, remedy=f"{another}; --force runs the plan anyway")
    split = request.split
    if len(split.used) > 1 or split.accumulates:
        raise_if_refused(facts)
