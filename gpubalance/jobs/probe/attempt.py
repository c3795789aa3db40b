"""What a probe keeps of a device; each record is a line in the journal."""

from __future__ import annotations

from gpubalance.results.probe import CurvePoint, Trial
from gpubalance.settings.record import Record, Seconds


class Attempt(Record):
    """A batch that was tried, and its point on the curve if it trains."""

    trial: Trial
    point: CurvePoint | None = None

    @property
    def died(self) -> bool:
        """Whether the worker died or fell silent, which says nothing certain about the batch."""
        return self.trial.outcome in ("crash", "deadline")

    @property
    def doubt(self) -> str:
        """Why the batch should be tried once more."""
        return {"crash": "the worker died", "deadline": "the worker fell silent"}.get(
            self.trial.outcome, "a larger batch passed"
        )


class Drift(Record):
    """How the device's speed changed while a worker measured: `factor` is a batch's step time now over before.

    `phase` is `explore` or `fill`; `after_s` counts from the worker's first measurement to this finding.
    """

    phase: str
    factor: float
    after_s: float


class HotPoint(Record):
    """A point measured once more, after the device's speed had changed."""

    point: CurvePoint


class Work(Record):
    """Floating-point operations of a step for one sample, and the seconds of an update; None if unknown."""

    step_flops: float | None
    update_s: Seconds | None = None
