"""`probe` as a whole: measures every device alone, and keeps the result for `plan`."""

from __future__ import annotations

from gpubalance.errors import GpubalanceError
from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.events import Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.saved import save
from gpubalance.jobs.plan.problem import check_asked
from gpubalance.jobs.probe.course import measure_all
from gpubalance.jobs.probe.devices import ProbedDevices
from gpubalance.jobs.probe.result import result_of, result_so_far
from gpubalance.results.probe import Probe
from gpubalance.settings.requests import ProbeRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party


def probe(
    request: ProbeRequest,
    watch: Watch,
    journal: Journal,
    limit: TimeLimit | None = None,
    next_party: Party | None = None,
) -> Probe:
    """Measures each of the request's devices alone, of equal ones the first.

    `limit` takes the place of the request's.

    `next_party` is the party that measures next: it loads TensorFlow when the last device begins.

    Each point and trial goes into the `journal`; those already in it are not measured again.
    Raises, with what was measured as `partial`: PartialResult if a worker died or a device failed
    and the others were measured, NothingFits if a device does not hold a single sample,
    EnvironmentFault if TensorFlow can use none, BadInput, TimeLimitPassed, Interrupted. Keeps the
    result, or the part, for `plan`.
    """
    check_asked(request)
    journal.watch = watch
    journal.tell_resumed()
    try:
        limit = limit or TimeLimit(request.time_limit_s)
        devices = ProbedDevices(request, journal, limit, watch, next_party)
        with attach_partial(lambda: result_so_far(devices)):
            measure_all(devices)
            result = result_of(devices)
    except GpubalanceError as error:
        if isinstance(error.partial, Probe):
            save(error.partial)
        raise
    journal.stays = save(result) is None
    return result
