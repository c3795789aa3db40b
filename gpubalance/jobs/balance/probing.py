"""The probe that a balance starts from: a kept one, or one that it makes."""

from __future__ import annotations

from gpubalance.errors import GpubalanceError, NothingFits
from gpubalance.jobs.events import Doing, Event, PointDone, TrialDone, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.journals import journal_of, tell_resumed
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.keep.saved_probes import holds_nothing, kept_probe, kept_probes
from gpubalance.jobs.probe.probe import probe as probe_stage
from gpubalance.results.probe import Probe
from gpubalance.settings.record import Record
from gpubalance.settings.requests import BalanceRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party


class PlannedWith(Record):
    """When the probe that a balance plans with was made; null while it still makes it."""

    created: str | None


def probe_for(
    request: BalanceRequest,
    driver: str | None,
    limit: TimeLimit,
    watch: Watch,
    journal: Journal | None,
    once: Once,
    party: Party | None = None,
) -> Probe:
    """The balance's probe from before an interruption, else a kept one of these devices and settings or a new one.

    The `party` of the joint runs loads TensorFlow when the probe of the last device begins.
    """
    before = once.had("probe", PlannedWith)
    probe = _of(before) if before else None
    if before is None or (before.created and probe is None):
        probe = kept_probe(request)
    if probe is None:
        probe = _new(request, driver, limit, watch, once, party, resume=journal is not None and journal.resume)
    else:
        tell_resumed(journal, watch)
        watch(Doing(f"planning with the probe of {probe.created}; --fresh makes a new one", stays=True))
    return probe


def _of(before: PlannedWith) -> Probe | None:
    return next((one for one in kept_probes() if one.created == before.created), None)


def _new(
    request: BalanceRequest,
    driver: str | None,
    limit: TimeLimit,
    watch: Watch,
    once: Once,
    party: Party | None,
    *,
    resume: bool,
) -> Probe:
    """Probes the devices. If nothing fits on one of them, that is no error: the others are left."""
    is_kept = False

    def tell(event: Event) -> None:
        nonlocal is_kept
        if not is_kept and isinstance(event, TrialDone | PointDone):
            is_kept = True
            once.keep("probe", PlannedWith(created=None))  # else a resumed balance would take an older probe
        watch(event)

    try:
        with journal_of(request.probe, driver, resume=resume) as journal:
            probe = probe_stage(request.probe, driver, tell, journal, limit, party)
            once.keep("probe", PlannedWith(created=probe.created))  # before the probe's own journal is gone
            return probe
    except GpubalanceError as error:
        found = error.partial
        if isinstance(error, NothingFits) and isinstance(found, Probe) and not all(map(holds_nothing, found.probes)):
            watch(Doing(error.message))
            once.keep("probe", PlannedWith(created=found.created))
            return found
        error.partial = None  # a partial probe, which is kept, is no partial plan
        raise
