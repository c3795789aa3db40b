"""The course of `independent`: each alone and all at once, going on without devices that fail."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import (
    BadInput,
    GpubalanceError,
    NothingFits,
    OutOfMemory,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.jobs.endings import one_error
from gpubalance.jobs.events import Doing
from gpubalance.jobs.independent.replica import OwnReplica
from gpubalance.jobs.independent.result import Found
from gpubalance.jobs.measure.joint import in_turns
from gpubalance.jobs.measure.window import Turn


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
