"""Which journal a command has: two commands that would measure the same share a key."""

from __future__ import annotations

from gpubalance.devices.hosts import typed_for_hosts
from gpubalance.errors import InUse
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.keep.software import software_key
from gpubalance.settings.requests import (
    BalanceRequest,
    IndependentRequest,
    LayersRequest,
    ProbeRequest,
    RunRequest,
)

Request = RunRequest | ProbeRequest | BalanceRequest | IndependentRequest | LayersRequest
# How long and how carefully it is measured, and what else does not change a measurement.
_SAME: dict[str, object] = {
    **dict.fromkeys(("deadline_s", "time_limit_s", "tracing")),
    **dict.fromkeys(("for_split", "fresh", "force"), False),
    **{"ahead": True, "least_samples": 0, "rounds": 1},
}


def tell_resumed(journal: Journal | None, watch: Watch) -> None:
    """Says whether the command continues what was measured before, or could."""
    if journal is None:
        return
    if journal.passes_over:
        text = "an unfinished measurement was found; --resume continues it"
    elif journal.resumed:
        text = "continuing an unfinished measurement"
    elif journal.resume:
        text = "nothing unfinished was found for these devices and settings: starting from the beginning"
    else:
        return
    watch(Doing(text, stays=True))


def journal_of(request: Request, driver: str | None, *, resume: bool) -> Journal:
    """The journal of a command, the same for more rounds, more windows or another time limit.

    Raises InUse if another process is making the same probe; other commands have a journal each.
    """
    same = {name: value for name, value in _SAME.items() if name in type(request).model_fields}
    if not isinstance(request, ProbeRequest):
        same["measuring"] = request.measuring.model_copy(
            update={"windows": 1, "deadline_s": None, "time_limit_s": None}
        )
    own = [request.settings.model, *(request.models if isinstance(request, IndependentRequest) else ())]
    key = content_key(
        type(request).__name__,
        request.model_copy(update=same),
        driver,
        *(software_key(model, request.settings.data) for model in own),
        *typed_for_hosts(),
    )
    if isinstance(request, ProbeRequest):
        return Journal(key, "a probe of the same devices and settings", resume=resume)
    return _free_journal(key, resume)


def _free_journal(key: str, resume: bool) -> Journal:
    """The first journal of this key that no process holds: on simulated devices equal commands may run at once.

    With `resume`, journals in which something was left come first.
    """
    keys = [key, *(f"{key}-{number}" for number in range(1, 100))]
    left = [one for one in keys if Journal.is_left(one)] if resume else []
    for one in [*left, *keys]:
        try:
            return Journal(one, "the journal of this command", resume=resume)
        except InUse:
            continue
    raise InUse("this command runs a hundred times already", remedy="wait until one of them has ended")
