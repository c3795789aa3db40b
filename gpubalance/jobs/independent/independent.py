"""`independent`: a model of its own on each device, all at once, in turns with each alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gpubalance.errors import (
    BadInput,
    GpubalanceError,
    NothingFits,
    OutOfMemory,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.jobs.endings import attach_partial, one_error
from gpubalance.jobs.events import Doing, PhaseBegun, Starting, Watch, one_at_a_time
from gpubalance.jobs.independent.replica import OwnReplica, replicas_of
from gpubalance.jobs.independent.result import Found
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.verdicts import KeptVerdicts
from gpubalance.jobs.measure.joint import in_turns
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.trace import trace
from gpubalance.jobs.measure.window import Turn
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


def measure_in_turns(found: Found) -> None:
    """Measures each device alone and all at once, until all is known or no device is left.

    Raises BadInput, UsageError and TimeLimitPassed, no device's fault.
    """
    measurer = found.measurer
    measuring = found.request.measuring
    measurer.watch(Doing("warming up all devices at once"))
    try:
        measurer.warm_up_at_once([replica.alone for replica in found.replicas])
    except GpubalanceError as error:
        drop_out(found, error)
    while found.going:
        try:
            in_turns(
                measurer,
                turns_of(found.going),
                measuring,
                "measuring {what}, {window}",
                found.refuse_too_slow,
            )
        except GpubalanceError as error:
            drop_out(found, error)
        else:
            return


def drop_out(found: Found, error: GpubalanceError) -> None:
    """Goes on without the devices that failed; what all gave at once then no longer counts.

    Raises an error that is no device's fault.
    """
    measurer = found.measurer
    failures = measurer.party.failures
    if error not in failures.values():
        raise error
    for number, failure in sorted(failures.items()):
        if isinstance(failure, BadInput | TimeLimitPassed):
            raise failure
        replica = found.replicas[number]
        replica.error = failure
        if isinstance(failure, OutOfMemory):
            replica.error = failure.fault or failure
            # Its memory will not hold its batch the next time either.
            if not measurer.windows[replica.alone]:
                measurer.journal.helps = False
        measurer.watch(Doing(f"{replica.device.label} dropped out: {failure.message}"))
    measurer.forget([replica.at_once for replica in found.replicas])


def turns_of(replicas: Sequence[OwnReplica]) -> list[Turn]:
    """Each alone, and all at once if there are several."""
    turns: list[Turn] = [(replica.alone,) for replica in replicas]
    if len(turns) > 1:
        turns.append(tuple(replica.at_once for replica in replicas))
    return turns


def one_failure(replicas: Sequence[OwnReplica]) -> GpubalanceError | None:
    """One error that names all failed devices, None if none failed.

    It is partial unless all devices failed alike.
    """
    failed = [(replica.device, replica.error) for replica in replicas if replica.error]
    if not failed:
        return None
    kinds = {type(error) for _, error in failed}
    if len(failed) < len(replicas) or len(kinds) > 1:
        return one_error(PartialResult, failed)
    (kind,) = kinds
    if kind is OutOfMemory:
        kind = NothingFits
    return one_error(kind, failed)
