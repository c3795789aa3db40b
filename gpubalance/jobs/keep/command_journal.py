"""Which journal a command has."""

from __future__ import annotations

import platform

from gpubalance._version import __version__
from gpubalance.devices.hosts import typed_for_hosts
from gpubalance.errors import InUse
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.settings.code import code_key
from gpubalance.settings.requests import (
    IndependentRequest,
    MeasureRequest,
    ProbeRequest,
)
from gpubalance.system.versions import software

_MOST = 100  # equal commands at a time
# How long and how carefully it is measured, and what else does not change a measurement.
_BESIDE: dict[str, bool | set[str]] = {
    "tracing": True,
    "fresh": True,
    "force": True,
    "ahead": True,
    "least_samples": True,
    "rounds": True,
    "deadline_s": True,
    "time_limit_s": True,
    "measuring": {"windows", "deadline_s", "time_limit_s"},
}


def journal_of(request: MeasureRequest, *, resume: bool) -> Journal:
    """The journal of a command, the same for more rounds, more windows or another time limit.

    Raises InUse if another process is making the same probe; other commands have a journal each.
    """
    models = [request.settings.model]
    if isinstance(request, IndependentRequest):
        models += request.models
    key = content_key(
        type(request).__name__,
        request.model_dump_json(exclude=_BESIDE),
        request.driver,
        *(software_key(model, request.settings.data) for model in models),
        *typed_for_hosts(),
    )
    if isinstance(request, ProbeRequest):
        return Journal(key, "a probe of the same devices and settings", resume=resume)
    return free_journal(key, resume)


def software_key(model: str, data: str | None = None) -> str:
    """What a step's speed depends on besides devices and settings.

    The host, versions, the user's own files.
    """
    versions = [version or "" for version in software()]
    return " ".join([platform.node(), __version__, *versions, code_key(model, data)])


def free_journal(key: str, resume: bool) -> Journal:
    """The first journal of this key that no process holds.

    On simulated devices equal commands may run at once. With `resume`, journals of interrupted
    commands come first, the newest before the others.
    """
    keys = [key] + [f"{key}-{number}" for number in range(1, _MOST)]
    if resume:
        keys.sort(key=Journal.left_at, reverse=True)
    for free in keys:
        try:
            return Journal(free, "the journal of this command", resume=resume)
        except InUse:
            continue
    raise InUse(
        "this command is already running a hundred times",
        remedy="wait until one of them has ended",
    )
