"""Which journal a command has: two commands that would measure the same share a key."""

from __future__ import annotations

import platform

from gpubalance._version import __version__
from gpubalance.devices.hosts import typed_for_hosts
from gpubalance.errors import InUse
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.settings.requests import IndependentRequest, MeasureRequest, ProbeRequest
from gpubalance.system.versions import software
from gpubalance.workers.code import code_key

# How long and how carefully it is measured, and what else does not change a measurement.
_BESIDE = {"tracing", "for_split", "fresh", "force", "ahead", "least_samples", "rounds"}
_BESIDE |= {"deadline_s", "time_limit_s"}
_MEASURING = {"windows", "deadline_s", "time_limit_s"}


def tell_resumed(journal: Journal | None, watch: Watch) -> None:
    """Says whether the command continues what was measured before, or could."""
    text = ""
    if journal is not None and journal.passes_over:
        text = "an unfinished measurement was found; --resume continues it"
    elif journal is not None and journal.resume:
        text = "nothing unfinished was found for these devices and settings: starting from the beginning"
        text = "continuing an unfinished measurement" if journal.resumed else text
    if text:
        watch(Doing(text, stays=True))


def journal_of(request: MeasureRequest, driver: str | None, *, resume: bool) -> Journal:
    """The journal of a command, the same for more rounds, more windows or another time limit.

    Raises InUse if another process is making the same probe; other commands have a journal each.
    """
    beside: dict[str, bool | set[str]] = {**dict.fromkeys(_BESIDE, True), "measuring": _MEASURING}
    models = [request.settings.model]
    models += request.models if isinstance(request, IndependentRequest) else ()
    key = content_key(
        type(request).__name__,
        request.model_dump_json(exclude=beside),
        driver,
        *(software_key(model, request.settings.data) for model in models),
        *typed_for_hosts(),
    )
    if isinstance(request, ProbeRequest):
        return Journal(key, "a probe of the same devices and settings", resume=resume)
    return free_journal(key, resume)


def software_key(model: str, data: str | None = None) -> str:
    """What a step's speed depends on besides devices and settings: the host, versions, the user's own files."""
    return " ".join([platform.node(), __version__, *(one or "" for one in software()), code_key(model, data)])


def free_journal(key: str, resume: bool) -> Journal:
    """The first journal of this key that no process holds: on simulated devices equal commands may run at once.

    With `resume`, journals in which something was left come first, the newest before the others.
    """
    keys = [key, *(f"{key}-{number}" for number in range(1, 100))]
    for one in sorted(keys, key=Journal.left_at, reverse=True) if resume else keys:
        try:
            return Journal(one, "the journal of this command", resume=resume)
        except InUse:
            continue
    raise InUse("this command runs a hundred times already", remedy="wait until one of them has ended")
