"""The probe that a balance stands on: one that is kept, or one that it makes."""

from __future__ import annotations

from gpubalance.config import BalanceRequest
from gpubalance.errors import RESUME, GpubalanceError, NothingFits, PartialResult, TimeLimitPassed
from gpubalance.results.probe import Probe
from gpubalance.stages.events import Doing, Event, TimeLeft, Watch
from gpubalance.stages.journal import Journal
from gpubalance.stages.plan import check_global_batch
from gpubalance.stages.probe.saved import ALL, holds_nothing, latest
from gpubalance.stages.probe.stage import journal_key
from gpubalance.stages.probe.stage import probe as probe_stage
from gpubalance.time_limit import TimeLimit

# For telling how long it will take
_USUAL_ROUNDS = 2
_SETTLING_S = 2.0


def kept_probe(request: BalanceRequest, *, resume: bool) -> Probe | None:
    """The latest probe to plan with; None where one is to be made, or was interrupted and is to go on."""
    if resume and Journal.is_left(journal_key(request.probe)):
        return None
    if request.fresh and not resume:
        return None
    return latest(request.devices, request.settings, up_to=request.probe.max_batch or ALL)


def new_probe(
    request: BalanceRequest, driver: str | None, limit: TimeLimit, watch: Watch, *, resume: bool = False
) -> Probe:
    """A probe of the devices. One on which nothing fits is no error here: the others are what is left."""
    check_global_batch(request.plan, request.probe.batch_multiple)  # before minutes are spent on one

    def tell(event: Event) -> None:
        then_s = joint_s(request, rounds=_USUAL_ROUNDS)
        watch(TimeLeft(event.seconds + then_s) if isinstance(event, TimeLeft) else event)

    try:
        return probe_stage(request.probe, driver, tell, limit=limit, resume=resume)
    except GpubalanceError as error:
        found = error.partial
        if isinstance(error, NothingFits) and isinstance(found, Probe) and not all(map(holds_nothing, found.probes)):
            watch(Doing(error.message))
            return found
        error.partial = None  # part of a probe, which is kept, is no part of a plan
        if isinstance(error, PartialResult | TimeLimitPassed):
            error.remedy = RESUME
        raise


def joint_s(request: BalanceRequest, rounds: int) -> float:
    """About how long so many rounds and the proving run take, in seconds."""
    measuring = request.measuring
    return rounds * (request.round_s + _SETTLING_S) + 2 * measuring.windows * measuring.duration_s
