"""Why a worker failed: what its log says, its reply that it failed, and that it gives none."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpubalance.devices.hosts import unreachable
from gpubalance.errors import (
    BadInput,
    Bug,
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    OutOfMemory,
    PartialResult,
    Refused,
)
from gpubalance.remedies import known_error, match_log
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, Host
from gpubalance.system.versions import software, untested
from gpubalance.text import clean
from gpubalance.workers.messages import Failed, Open

LONGEST_BYTES = 64 << 20
_TAIL_LINES = 12
_TAIL_BYTES = 20_000
# Information, and the line that follows it; absl's complaint that it was not initialised; a
# traceback's frames, as only its last line says what happened.
_SAYS_LITTLE = re.compile(
    r"I\d{4} |\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl"
    r"|To enable the following instructions"
    r"|Traceback \(most recent call last\):|(Current t|T)hread 0x|\s*$|  File \"|    "
)

_KINDS: dict[str, type[GpubalanceError]] = {"refused": Refused, "input": BadInput}
_STARTING = (
    "TensorFlow is still being loaded, or the function that builds the model does not "
    "return"
)
_LONGER = "allow more time: --deadline SECONDS"
_LACKS = (
    "free what is missing: memory, disk, processes (ulimit -u) or open files "
    "(ulimit -n)"
)


def empty_if_too_long(path: Path) -> None:
    """Empties the log if it is too long: a model may print in every step, and fill the disk.

    Whoever writes the log must append.
    """
    with suppress(OSError):
        if path.stat().st_size > LONGEST_BYTES:
            os.truncate(path, 0)


def tail(path: Path) -> str:
    """The last lines without tracebacks and TensorFlow's usual messages, safe for a terminal."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    telling = [line for line in lines if not _SAYS_LITTLE.match(line)]
    return "\n".join(clean(line, 300) for line in telling[-_TAIL_LINES:])


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
        reply = of_untested(known.error)
        if reply is not None:
            return reply
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


def of_untested(message: str) -> Failed | None:
    """The reply for an unexplained error, if TensorFlow or Keras is newer than what was tested."""
    here = software()
    newer = untested(here.tensorflow, here.keras)
    if newer is None:
        return None
    cause = f"probably that version: {newer.text}"
    return Failed(
        fault="environment", message=message, cause=cause, remedy=newer.remedy
    )


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
        return Bug(failed.message, report=f"the worker's whole log, {log}")
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


def silent(
    doing: str, within_s: float, log: Path, *, has_answered: bool
) -> DeadlinePassed:
    """The error for a worker that said nothing in that time."""
    error = DeadlinePassed(
        f"the worker sent nothing for {within_s:g} s while {doing}",
        cause=_STARTING,
        remedy=_LONGER,
        log=tail(log),
    )
    if has_answered:
        row = known_error("silent")
        error.cause = row.cause
        error.remedy = row.remedy
    error.remedy += f"\nits log is {log}"
    return error


def died(doing: str, code: int, log: Path) -> PartialResult:
    """The error for a worker that ended with that exit code."""
    error = PartialResult(f"the worker {ending(code)} while {doing}", log=tail(log))
    error.remedy = f"its whole log is {log}"
    row = match_log(error.log)
    if row is None and -code == signal.SIGKILL:
        row = known_error("host-memory")
    if row is not None:
        error.cause = row.cause
        error.remedy = f"{row.remedy}\n{error.remedy}"
    return error


def ending(code: int) -> str:
    """`ended with exit code 1`; below 0 it is the number of a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == signal.SIGKILL:
        return "was ended by SIGKILL, probably because the host ran out of memory"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def lost(host: Host | None, how: str, log: Path) -> PartialResult:
    """The error for a host from which nothing comes any more."""
    remedy = (
        "check whether the host is up and its network works; all processes of this "
        "command there end by themselves"
    )
    return PartialResult(f"{host} is lost: {how}", remedy=remedy, log=tail(log))


def not_reached(
    host: Host | None, how: str, log: Path, remedy: str
) -> EnvironmentFault:
    """The error for a process that never began, on another host if one is given."""
    if host:
        error = unreachable(host, how, remedy)
    else:
        error = EnvironmentFault(
            f"can't start a worker: its process {how}", remedy=_LACKS
        )
    error.log = tail(log)
    row = match_log(error.log)
    if host and row is not None:
        error.cause = row.cause
        error.remedy = f"{row.remedy.replace('HOST', host)}\n{error.remedy}"
    return error


def unreadable(why: ValueError, log: Path) -> PartialResult:
    """The error for a line that is no message."""
    message = f"a message of the worker cannot be read: {clean(str(why))}"
    return PartialResult(message, log=tail(log))
