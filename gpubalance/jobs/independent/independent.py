"""`independent`: a model of its own on each device, all at once, in turns with each alone."""

from __future__ import annotations

from typing import cast

from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.events import PhaseBegun, Starting, Watch, one_at_a_time
from gpubalance.jobs.independent.course import measure_in_turns, one_failure
from gpubalance.jobs.independent.replica import replicas_of
from gpubalance.jobs.independent.result import Found
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.verdicts import KeptVerdicts
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.trace import trace
from gpubalance.results.independent import Independent
from gpubalance.settings.requests import IndependentRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Build
from gpubalance.workers.party import Party


def independent(
    request: IndependentRequest, watch: Watch, journal: Journal
) -> Independent:
    """Trains the request's models, and reports what each device gives alone and at once.

    Windows go into the `journal`; those that are already in it are not measured again. The others
    go on when a device fails. Raises, with what was measured as `partial`: PartialResult, which
    names each device that failed, or the devices' own error if all failed alike; BadInput for a
    model that can't be trained, TimeLimitPassed, Interrupted.
    """
    tell = one_at_a_time(watch)
    measuring = request.measuring
    journal.watch = tell
    journal.tell_resumed()
    tell(PhaseBegun("independent"))
    builds = []
    for number in range(len(request.devices)):
        settings = request.settings_of(number)
        builds.append(
            Build(settings=settings, joint=request.joint, seed=measuring.seed)
        )
    with Party(
        *([device] for device in request.devices),
        build=builds,
        purpose="independent",
        deadline_s=measuring.deadline_s,
        limit=TimeLimit(measuring.time_limit_s),
        tell=lambda text: tell(Starting(text)),
        verdicts=KeptVerdicts(journal),
    ) as party:
        measurer = Measurer(party, journal, tell, workers_rest=True)
        found = Found(request, replicas_of(request), measurer)
        with attach_partial(found.result):
            measure_in_turns(found)
        splits = {replica.number: replica.alone.split for replica in found.going}
        found.trace_warnings = trace(party, splits, request.tracing, tell, apart=True)
        failed = one_failure(found.replicas)
        found.complete = failed is None
    if failed is not None:
        failed.partial = found.result()
        raise failed
    # No device failed, so each has its windows
    return cast("Independent", found.result())
