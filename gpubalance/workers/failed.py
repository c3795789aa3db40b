"""A request that failed: how a worker says why, and the error that its parent makes of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpubalance.errors import (
    BadInput,
    Bug,
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    OutOfMemory,
    Refused,
)
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.workers.log import tail
from gpubalance.workers.messages import Failed, Open

_KINDS: dict[str, type[GpubalanceError]] = {"refused": Refused, "input": BadInput}


def failed_reply(
    error: BaseException,
    training: Open | None,
    memory_peaks: Callable[[], tuple[int | None, ...]],
) -> Failed:
    """The worker's reply for an error; `training` is what its model was made for, if it trains.

    Out of memory it has the `memory_peaks`, what each device held.
    """
    from gpubalance.engine.failures import TaskFailedError, explain, tells_of_a_peer

    if isinstance(error, TaskFailedError):
        place = {"replica": error.device, "doing": error.doing}
        if error.__cause__ is None:
            return Failed(fault="hang", message=str(error), **place)
        return failed_reply(error.__cause__, training, memory_peaks).model_copy(
            update=place
        )
    settings = None
    names: list[str] = []
    if training is not None:
        settings = training.settings
        # A worker sees only its devices, in their order.
        kind = "CPU" if training.devices[0].simulated else "GPU"
        names = [f"{kind}:{number}" for number in range(len(training.devices))]
    known = explain(error, settings, names)
    fields: dict[str, Any] = {
        "fault": "environment",
        "message": known.message,
        "cause": known.cause,
        "remedy": known.remedy,
    }
    if isinstance(known, Bug):
        fields["fault"] = "bug"
        fields["message"] = known.error
    elif training and training.cluster and tells_of_a_peer(error):
        fields["fault"] = "peer"
    elif isinstance(known, OutOfMemory):
        fields["fault"] = "memory"
        fields["replica"] = known.replica
        fields["memory_peak_bytes"] = memory_peaks()
        if known.fault is not None:
            fields["message"] = known.fault.message
            fields["disguised"] = True
    elif isinstance(known, BadInput):
        fields["fault"] = "refused" if isinstance(error, BadInput) else "input"
    return Failed(**fields)


def error_of(
    failed: Failed, devices: Sequence[Device], split: BatchSplit | None, log: Path
) -> GpubalanceError:
    """The error that names the device at fault; `split` is what was trained, `log` the worker's."""
    replica = 0 if len(devices) == 1 else failed.replica
    if replica not in range(len(devices)):
        replica = None
    where = "the run" if replica is None else devices[replica].label
    remedy = f"the worker's whole log is {log}"
    if failed.fault == "hang":
        return DeadlinePassed(
            f"{where} hangs in {failed.doing}", remedy=remedy, log=tail(log)
        )
    if failed.fault == "bug":
        return Bug(failed.message, report=f"it with the worker's whole log, {log}")
    if failed.fault == "memory":
        return _out_of_memory(failed, where, replica, split, tail(log))
    kind = _KINDS.get(failed.fault, EnvironmentFault)
    error = kind(failed.message, cause=failed.cause, remedy=failed.remedy or remedy)
    # A fault in the user's model has their own traceback as its message, which the log would only
    # repeat.
    if not isinstance(error, BadInput):
        error.log = tail(log)
    return error


def _out_of_memory(
    failed: Failed, where: str, replica: int | None, split: BatchSplit | None, log: str
) -> GpubalanceError:
    if split:
        when = f"with batches {split}"
    elif failed.doing:
        when = f"in {failed.doing}"
    else:
        when = "while the model was built"
    fault = None
    if failed.disguised:
        fault = EnvironmentFault(
            failed.message, cause=failed.cause, remedy=failed.remedy, log=log
        )
        if split is None and not failed.doing:
            # Of a model that is built: there is no smaller batch that could tell
            return fault
    return OutOfMemory(
        f"{where} ran out of memory {when}",
        replica=replica,
        memory_peak_bytes=failed.memory_peak_bytes,
        log=log,
        fault=fault,
    )
