"""`run`: trains with a split for real, in turns with the even split."""

from __future__ import annotations

import shlex
from typing import NoReturn

from gpubalance.devices.planned import check_model
from gpubalance.errors import OutOfMemory
from gpubalance.jobs.endings import attach_partial, lost_gpus_told, refuse
from gpubalance.jobs.events import PhaseBegun, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.saved import save
from gpubalance.jobs.measure.fitting import Fitting
from gpubalance.jobs.measure.joint import JointRun, party_for
from gpubalance.jobs.measure.trace import trace
from gpubalance.results.common import Model
from gpubalance.results.run import Run, SoloBest
from gpubalance.settings.requests import RunRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party


def run(
    request: RunRequest,
    watch: Watch,
    journal: Journal,
    solo: tuple[SoloBest, ...] | None = None,
    planned: Model | None = None,
) -> Run:
    """Trains with the request's split and reports what it gives.

    `solo` is what the devices gave alone, to compare with. `planned` is the model that a plan is
    for. Windows go into the `journal`; those that are already in it are not measured again.

    Devices with batch 0 are left out: an empty share is not a replica. Raises NothingFits with a
    split that does fit when a device runs out of memory. Every error after the first window carries
    what was measured as `partial`.
    """
    used, limit = request.without_idle, TimeLimit(request.measuring.time_limit_s)
    journal.watch = watch
    journal.tell_resumed()
    watch(PhaseBegun("run"))
    result: Run | None = None
    with (
        attach_partial(lambda: result),
        lost_gpus_told(used.devices),
        party_for(used, watch, limit, journal=journal) as party,
    ):
        party.start()
        another = (
            f"gpubalance balance --model {shlex.quote(request.settings.model)} makes a plan for "
            "this one"
        )
        check_model(planned, party.facts.model, remedy=f"{another}; --force runs it all the same")
        if len(used.devices) > 1 or used.split.accumulates:
            refuse(party.facts)
        try:
            pipeline = request.settings.data is not None
            result = JointRun(request, party, watch, journal, solo, pipeline=pipeline).run()
        except OutOfMemory as error:
            raise_what_fits(error, party, used, watch)
        if len(result.replicas) > 1:
            save(result)
        noted = trace(party, {0: used.split}, used.tracing, watch)
        return result.model_copy(update={"warnings": (*result.warnings, *noted)})


def raise_what_fits(
    error: OutOfMemory, party: Party, request: RunRequest, watch: Watch
) -> NoReturn:
    """Raises the error that says what fits instead, with what was measured before, however that
    search ends.
    """
    with attach_partial(lambda: error.partial):
        raise Fitting(party, request, watch).error(error) from None
