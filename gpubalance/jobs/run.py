"""`run`: trains with a split for real, interleaved with the even split."""

from __future__ import annotations

from typing import cast

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.endings import attach_partial, raising_gpu_lost
from gpubalance.jobs.events import PhaseBegun, Watch
from gpubalance.jobs.journal import Journal
from gpubalance.jobs.measure.joint import JointRun
from gpubalance.jobs.measure.measurer import Measurer, check_facts, group_for
from gpubalance.jobs.measure.out_of_memory import JointMemorySearch
from gpubalance.jobs.measure.trace import trace
from gpubalance.jobs.saved import save
from gpubalance.results.common import Model
from gpubalance.results.run import Run, SoloBest
from gpubalance.settings.requests import RunRequest
from gpubalance.system.deadlines import TimeLimit


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
    split that does fit when a device runs out of memory, and UsageError once the first window shows
    that this machine computes clearly more slowly than the profile. Every other error after the
    first window carries what was measured as `partial`.
    """
    used = request.without_idle
    limit = TimeLimit(request.measuring.time_limit_s)
    journal.watch = watch
    journal.report_resumed()
    watch(PhaseBegun("run"))
    worker_group = group_for(used, watch, limit, journal=journal)
    has_data = request.settings.data is not None
    job = JointRun(
        request,
        Measurer(worker_group, journal, watch),
        solo,
        from_input_pipeline=has_data,
        refuses_too_slow=True,
    )
    with (
        attach_partial(job.state.result),
        raising_gpu_lost(used.devices),
        worker_group,
    ):
        worker_group.start()
        check_facts(worker_group.facts, request, planned)
        try:
            job.measure()
        except OutOfMemory as error:
            raise JointMemorySearch(worker_group, used, watch).error(error) from None
        result = cast("Run", job.state.result())  # it has windows
        if len(result.replicas) > 1:
            save(result)
        noted = trace(worker_group, {0: used.split}, used.tracing, watch)
        return result.model_copy(update={"warnings": (*result.warnings, *noted)})
