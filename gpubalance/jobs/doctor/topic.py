"""What doctor looks at, and the checks that it makes of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpubalance.errors import GpubalanceError
from gpubalance.remedies import match
from gpubalance.remedies.row import Known
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import ANSWERS_WITHIN_S, within


class Topic(NamedTuple):
    """The code of a check, and what it is called on screen."""

    code: str
    what: str

    def check(self, status: Status, detail: str, next_: str | None = None) -> Check:
        """`next_` is what to do about it."""
        return Check(code=self.code, status=status, what=self.what, detail=detail, next=next_)

    def ok(self, detail: str) -> Check:
        """Nothing is wrong."""
        return self.check("ok", detail)

    def skipped(self, why: str) -> Check:
        """Nothing was looked at."""
        return self.check("skipped", why)

    def known(self, status: Status, row: Known, detail: str) -> Check:
        """A fault with the cause and the remedy of a known error."""
        return self.check(status, f"{detail}: {row.cause}", row.remedy)

    def failed(self, error: GpubalanceError, *, where: str = "") -> Check:
        """The failure of a check that raised this error."""
        return self.check(
            "failure", f"{where}{error.message}{f': {error.cause}' if error.cause else ''}", error.remedy or None
        )

    def guarded(self, look: Callable[[], Check], seconds: float = ANSWERS_WITHIN_S) -> Check:
        """The check that `look` makes in this process; a failure where it raises or hangs."""
        try:
            return within(look, seconds)
        except GpubalanceError as error:
            return self.failed(error)
        except Exception as error:  # noqa: BLE001  (one check is no reason to lose the others)
            row = match(str(error))
            detail = f"this check itself failed: {type(error).__name__}: {error}"
            return self.check("failure", detail, row.remedy if row else None)
