"""Every error that gpubalance raises on purpose, one class an exit code.

    GpubalanceError
    ├── UsageError         2   the command line asks for something impossible
    ├── EnvironmentFault   3   driver, library, device, or what can't be written
    │   └── InUse              another gpubalance process has it
    ├── BadInput           4   a file or a model
    │   └── Refused            not for lack of memory
    ├── NothingFits        5   memory
    │   └── OutOfMemory        of one trial; a stage may go on with a smaller batch
    ├── PartialResult      6   only part of it was measured
    │   └── GpuLost            a device is gone: it is not used again
    ├── PlanMismatch       7   the plan is for other devices, model or settings
    ├── DeadlinePassed     8
    │   └── TimeLimitPassed    the time that the user gave to the whole command
    ├── Regression         9   `compare`
    ├── Interrupted      130   Ctrl-C (143: SIGTERM)
    └── Bug                1   a mistake in gpubalance itself

Only cli/ catches them: it prints one message and exits with the code.
"""

from __future__ import annotations

import signal
from typing import Any

from gpubalance.remedies import KnownError, known_error, match

RESUME = "--resume continues it"


class GpubalanceError(Exception):
    """What happened, where, why, and what to do next.

    `message` is one sentence that names the place (a device, a file, a flag). `cause` is why it
    happens, if that is known and not in the message. `remedy` is what the user can do, ideally a
    command. Both come from the table of `remedies`, or are more specific. `log` is the end of a
    worker's log, `partial` the result record of what was measured before the error, so that nothing
    measured is lost.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        cause: str = "",
        remedy: str = "",
        log: str = "",
        partial: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.remedy = remedy
        self.log = log
        self.partial = partial

    def __str__(self) -> str:
        """The end of a script's traceback: what happened, and below it why and what to do."""
        lines = [self.message]
        if self.cause:
            lines.append(f"  cause: {self.cause}")
        if self.remedy:
            remedy = self.remedy.replace("\n", "\n    ")
            lines.append(f"  → {remedy}")
        return "\n".join(lines)


class Bug(GpubalanceError):
    """A mistake in gpubalance: no cause in the table of known errors is its cause.

    `error` is what Python raised for it, `report` what the user should send.
    """

    def __init__(self, error: str, *, report: str) -> None:
        super().__init__(f"a bug in gpubalance: {error}", remedy=f"report {report}")
        self.error = error


def machine_fault(error: BaseException) -> KnownError | None:
    """The row of what the system refused; None for any other error, whatever its text quotes."""
    return match(str(error)) if isinstance(error, OSError) else None


class UsageError(GpubalanceError):
    exit_code = 2


class EnvironmentFault(GpubalanceError):
    exit_code = 3


class InUse(EnvironmentFault):
    """Another gpubalance process is using it."""


class BadInput(GpubalanceError):
    exit_code = 4


class Refused(BadInput):
    """Refused by a check before any training, so it can't be a lack of memory in disguise."""


class NothingFits(GpubalanceError):
    exit_code = 5


class PartialResult(GpubalanceError):
    exit_code = 6


class GpuLost(PartialResult):
    """A GPU fell off the bus, or does not answer until it is reset."""


class PlanMismatch(GpubalanceError):
    exit_code = 7


class DeadlinePassed(GpubalanceError):
    exit_code = 8


class TimeLimitPassed(DeadlinePassed):
    """The `seconds` that the user gave are over; what was measured is kept.

    `enough_s` should do for all of it; None if that is not known.
    """

    enough_s: int | None = None

    _RAISE_IT = "raise --time-limit, or leave it out"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the time limit of {seconds:g} s passed", remedy=self._RAISE_IT
        )
        self.seconds = seconds

    def propose(self, enough_s: int, why: str) -> None:
        """Says how long is enough. What the remedy says besides stays, as that it can resume."""
        self.enough_s = enough_s
        limit = f"{why}: --time-limit {enough_s}"
        self.remedy = self.remedy.replace(self._RAISE_IT, limit)


class Regression(GpubalanceError):
    exit_code = 9


class Interrupted(GpubalanceError):
    """Ctrl-C or SIGTERM. `signal_number` gives the exit code, 128 + it, as shells do."""

    def __init__(
        self, signal_number: int, *, partial: Any = None, remedy: str = ""
    ) -> None:
        super().__init__("interrupted", remedy=remedy, partial=partial)
        self.exit_code = 128 + signal_number

    @classmethod
    def by(
        cls, interrupt: KeyboardInterrupt, *, partial: Any = None, remedy: str = ""
    ) -> Interrupted:
        """The error for an interrupt, which carries the signal's number if it was not a Ctrl-C."""
        return cls(
            getattr(interrupt, "number", int(signal.SIGINT)),
            partial=partial,
            remedy=remedy,
        )

    def __str__(self) -> str:
        if self.remedy:
            return f"interrupted: {self.remedy}"
        if self.partial is None:
            return "interrupted: nothing was measured yet"
        # An unfinished window is in the result, but --resume measures it anew.
        return (
            "interrupted: the result comes from an incomplete measurement, and "
            "--resume has nothing to continue"
        )


class OutOfMemory(NothingFits):
    """A device's memory did not hold its batch. `replica` is its place in the run, None if unknown.

    `memory_peak_bytes` is what each device held or, for a simulated one, would have needed; empty
    if unknown. `fault` is the error that it is if no smaller batch trains: cuDNN, cuBLAS and NCCL
    say the same of other faults.
    """

    def __init__(
        self,
        message: str,
        *,
        replica: int | None = None,
        memory_peak_bytes: tuple[int | None, ...] = (),
        log: str = "",
        fault: EnvironmentFault | None = None,
    ) -> None:
        known = fault or known_error("out-of-memory")
        super().__init__(message, cause=known.cause, remedy=known.remedy, log=log)
        self.fault = fault
        self.replica = replica
        self.memory_peak_bytes = memory_peak_bytes
