"""A check that fails or hangs is a failed check, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable

from gpubalance.errors import GpubalanceError
from gpubalance.remedies import match
from gpubalance.remedies.row import Known
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import ANSWERS_WITHIN_S, within


def guarded(code: str, what: str, look: Callable[[], list[Check]], seconds: float = ANSWERS_WITHIN_S) -> list[Check]:
    """The checks that `look` makes in this process; one failure where it raises or hangs."""
    try:
        return within(look, seconds)
    except GpubalanceError as error:
        return [failed(code, what, error)]
    except Exception as error:  # noqa: BLE001  (of one check, which is no reason to lose the others)
        row = match(str(error))
        detail = f"this check itself failed: {type(error).__name__}: {error}"
        return [Check(code=code, status="failure", what=what, detail=detail, next=row.remedy if row else None)]


def failed(code: str, what: str, error: GpubalanceError, *, where: str = "") -> Check:
    """A failure, of an error that a check in a worker raised."""
    detail = f"{where}{error.message}{f': {error.cause}' if error.cause else ''}"
    return Check(code=code, status="failure", what=what, detail=detail, next=error.remedy or None)


def of_row(code: str, status: Status, what: str, row: Known, detail: str, *, index: int | None = None) -> Check:
    """A check whose cause and remedy are a row's of the known errors; `index` takes the place of N in a command."""
    told = row.remedy if index is None else row.remedy.replace("-i N", f"-i {index}")
    return Check(code=code, status=status, what=what, detail=f"{detail}: {row.cause}", next=told)
