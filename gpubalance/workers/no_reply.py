"""The errors for a process that gives no reply: it is silent, has died or is lost."""

from __future__ import annotations

import signal
from pathlib import Path

from gpubalance.devices.hosts import unreachable
from gpubalance.errors import DeadlinePassed, EnvironmentFault, PartialResult
from gpubalance.remedies import known_error, match_log
from gpubalance.settings.device import Host
from gpubalance.text import clean
from gpubalance.workers.log import tail

_STARTING = (
    "TensorFlow is still being loaded, or the function that builds the model does not "
    "return"
)
_LONGER = "give it longer: --deadline SECONDS"
_LACKS = (
    "free what it lacks: memory, disk, processes (ulimit -u) or open files (ulimit -n)"
)


def silent(
    doing: str, within_s: float, log: Path, *, has_answered: bool
) -> DeadlinePassed:
    """The error for a worker that said nothing in that time."""
    error = DeadlinePassed(
        f"the worker said nothing for {within_s:g} s while {doing}",
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
        return "was ended by SIGKILL, probably as the host's memory ran out"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def lost(host: Host | None, how: str, log: Path) -> PartialResult:
    """The error for a host from which nothing comes any more."""
    remedy = "is the host up, and its network? all that ran there ends"
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
    message = f"the worker's message is not readable: {clean(str(why))}"
    return PartialResult(message, log=tail(log))
