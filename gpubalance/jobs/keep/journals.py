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
    Measuring,
    ProbeRequest,
    RunRequest,
)


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


def probe_journal(request: ProbeRequest, driver: str | None, *, resume: bool) -> Journal:
    """The journal of this probe. Raises InUse if another process is making the same one."""
    same = {"deadline_s": None, "time_limit_s": None, "ahead": True, "for_split": False, "least_samples": 0}
    key = _key(request, driver, **same, tracing=None)
    return Journal(key, "a probe of the same devices and settings", resume=resume)


def run_journal(request: RunRequest, driver: str | None, *, resume: bool) -> Journal:
    """The journal of a run of this split, the same for more windows or another time limit."""
    return _free_journal(_key(request, driver, measuring=_without_bounds(request.measuring), tracing=None), resume)


def independent_journal(request: IndependentRequest, driver: str | None, *, resume: bool) -> Journal:
    """The journal of these models on these devices, the same for more windows or another time limit."""
    key = _key(request, driver, measuring=_without_bounds(request.measuring), tracing=None)
    return _free_journal(content_key(key, *map(software_key, request.models)), resume)


def balance_journal(request: BalanceRequest, driver: str | None, *, resume: bool) -> Journal:
    """The journal of a balance, the same for more rounds, more windows or another time limit."""
    measuring = _without_bounds(request.measuring)
    return _free_journal(_key(request, driver, measuring=measuring, rounds=1, fresh=False, tracing=None), resume)


def layers_journal(request: LayersRequest, driver: str | None, *, resume: bool) -> Journal:
    """The journal of a cut model, the same for more rounds, more windows or another time limit."""
    measuring = _without_bounds(request.measuring)
    return _free_journal(_key(request, driver, measuring=measuring, rounds=1, fresh=False, force=False), resume)


def _key(
    request: RunRequest | ProbeRequest | BalanceRequest | IndependentRequest | LayersRequest,
    driver: str | None,
    **beside: object,
) -> str:
    """A key shared by all requests that differ only in the fields that `beside` replaces."""
    same = request.model_copy(update=beside)
    return content_key(
        type(request).__name__,
        same,
        driver,
        software_key(request.settings.model, request.settings.data),
        *typed_for_hosts(),
    )


def _without_bounds(measuring: Measuring) -> Measuring:
    return measuring.model_copy(update={"windows": 1, "deadline_s": None, "time_limit_s": None})


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
