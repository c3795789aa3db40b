"""Which journal a command has, and goes on with."""

from __future__ import annotations

from gpubalance.errors import InUse
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.keep.software import software_key
from gpubalance.settings.requests import BalanceRequest, Measuring, ProbeRequest, RunRequest


def tell_resumed(journal: Journal | None, watch: Watch) -> None:
    """Whether there is something to go on with, where that was asked for."""
    if journal is not None and journal.passes_over:
        watch(Doing("an interrupted one of this was left: --resume would go on with it"))
    if journal is not None and journal.resume:
        watch(Doing("going on with what was measured before" if journal.resumed else "nothing to go on with: anew"))


def probe_journal(request: ProbeRequest, driver: str | None, *, resume: bool) -> Journal:
    """The journal of whatever would measure the same. Raises InUse where another process is at that."""
    key = content_key(
        *request.devices,
        request.settings,
        request.max_batch,
        request.batch_multiple,
        request.margin_bytes,
        request.duration_s,
        request.seed,
        request.parallel,
        driver,
        software_key(request.settings.model),
    )
    return Journal(key, "a probe of the same devices and settings", resume=resume)


def run_journal(request: RunRequest, driver: str | None, *, resume: bool) -> Journal:
    """The journal of a run of that split: more windows, or another time limit, are the same run."""
    key = content_key(
        "run",
        *request.devices,
        *request.batches,
        *request.at_a_time,
        request.settings,
        request.joint,
        _without_bounds(request.measuring),
        driver,
        software_key(request.settings.model),
    )
    return _journal(key, resume=resume)


def balance_journal(request: BalanceRequest, driver: str | None, *, resume: bool) -> Journal:
    """The journal of a balance: more rounds or windows, or another time limit, are the same one."""
    measuring = _without_bounds(request.measuring)
    same = request.model_copy(update={"measuring": measuring, "rounds": 1, "fresh": False, "tracing": None})
    return _journal(content_key("balance", same, driver, software_key(request.settings.model)), resume=resume)


def _without_bounds(measuring: Measuring) -> Measuring:
    return measuring.model_copy(update={"windows": 1, "deadline_s": None, "time_limit_s": None})


def _journal(key: str, *, resume: bool) -> Journal:
    """GPUs are kept apart by locks of their own. Simulated devices may be used by several at once: each has a journal,
    and what goes on takes the first that nobody has and that something was left in.
    """
    keys = [key, *(f"{key}-{number}" for number in range(1, 100))]
    left = [one for one in keys if Journal.is_left(one)] if resume else []
    for one in [*left, *keys]:
        try:
            return Journal(one, "the journal of this command", resume=resume)
        except InUse:
            continue
    raise InUse("a hundred of the same command are at work", remedy="wait until one has ended")
