"""The probe that a balance plans with: one that is kept, or a new one."""

from __future__ import annotations

from gpubalance.errors import GpubalanceError, NothingFits
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.command_journal import journal_of
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.probes import holds_nothing, kept_probe
from gpubalance.jobs.probe.probe import probe as probe_stage
from gpubalance.results.probe import Probe
from gpubalance.settings.requests import BalanceRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party


def probe_for(
    request: BalanceRequest, limit: TimeLimit, watch: Watch, journal: Journal
) -> Probe:
    """The balance's probe: see `probe_from_before`, else `new_probe`."""
    return probe_from_before(request, watch, journal) or new_probe(
        request, limit, watch, journal
    )


def probe_from_before(
    request: BalanceRequest, watch: Watch, journal: Journal
) -> Probe | None:
    """The balance's probe from before an interruption, else a kept one, or None.

    A kept one is of these devices and settings.
    """
    own = journal.load("probe", Probe)  # which --fresh has made
    earlier = own or kept_probe(request)
    if earlier is not None:
        journal.tell_resumed()
        text = f"planning with the probe of {earlier.created}"
        if own is None:
            text += "; --fresh makes a new one"
        watch(Doing(text, stays=True))
    return earlier


def new_probe(
    request: BalanceRequest,
    limit: TimeLimit,
    watch: Watch,
    journal: Journal,
    next_party: Party | None = None,
) -> Probe:
    """A probe for the balance.

    The party of the joint runs, which is `next_party`, loads TensorFlow when the probe of the last
    device begins. If nothing fits on one of the devices, that is no error: the others are left.
    """
    journal.begin_anew()
    try:
        with journal_of(request.probe, resume=journal.resume) as own:
            made = probe_stage(request.probe, watch, own, limit, next_party)
    except GpubalanceError as error:
        partial = error.partial
        error.partial = None  # a partial probe, which is kept, is no partial plan
        if not isinstance(error, NothingFits) or not partial:
            raise
        if all(holds_nothing(entry) for entry in partial.probes):
            raise
        watch(Doing(error.message))
        made = partial
    journal.add("probe", made)
    return made
