"""`independent`: a model of its own on each device, all at once, in turns with each alone."""

from __future__ import annotations

from gpubalance.jobs.endings import giving
from gpubalance.jobs.events import Doing, PhaseBegun, Watch, one_at_a_time
from gpubalance.jobs.independent.result import independent_result, what_failed
from gpubalance.jobs.independent.turns import Turns
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.journals import tell_resumed
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.measure.trace import trace
from gpubalance.results.independent import Independent
from gpubalance.settings.requests import IndependentRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Build, Party


def independent(
    request: IndependentRequest, driver: str | None, watch: Watch, journal: Journal | None = None
) -> Independent:
    """Trains the request's models, and reports what each device gives alone and at once. `driver` is recorded.

    Windows go into the `journal`; those that are already in it are not measured again. The others go on when a device
    fails. Raises, with what was measured as `partial`: PartialResult, which names each device that failed, or the
    devices' own error if all failed alike; BadInput for a model that can't be trained, TimeLimitPassed, Interrupted.
    """
    tell = one_at_a_time(watch)
    tell_resumed(journal, tell)
    tell(PhaseBegun("independent"))
    with _party(request, tell) as party:
        turns = Turns(request, party, Once(journal, tell), tell)
        with giving(lambda: independent_result(turns, driver, complete=False)):
            turns.measure()
        failed = what_failed(turns)
        splits = {one.number: Shares((one.batch,)) for one in turns.going}
        noted = trace(party, splits, request.tracing, tell, apart=True)
        result = independent_result(turns, driver, complete=failed is None, noted=noted)
    if failed is not None:
        failed.partial = result
        raise failed
    assert result is not None  # noqa: S101  (no device failed, so each has its windows)
    return result


def _party(request: IndependentRequest, watch: Watch) -> Party:
    measuring, numbers = request.measuring, range(len(request.devices))
    return Party(
        *([device] for device in request.devices),
        build=[Build(request.settings_of(number), request.joint, measuring.seed) for number in numbers],
        purpose="independent",
        deadline_s=measuring.deadline_s,
        limit=TimeLimit(measuring.time_limit_s),
        tell=lambda text: watch(Doing(text)),
    )
