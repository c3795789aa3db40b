"""What a probe keeps of a device, each a line in the journal."""

from __future__ import annotations

from gpubalance.results.probe import CurvePoint, Trial
from gpubalance.settings.record import Record, Seconds


class Attempt(Record):
    """A batch that was tried, and the point of the curve if it trains."""

    trial: Trial
    point: CurvePoint | None = None

    @property
    def died(self) -> bool:
        """Whether the worker died or fell silent: that says nothing certain of the batch."""
        return self.trial.outcome in ("crash", "deadline")

    @property
    def doubt(self) -> str:
        """Why it should be tried once more."""
        return {"crash": "the worker died", "deadline": "the worker fell silent"}.get(
            self.trial.outcome, "a larger batch passed"
        )


class Drift(Record):
    """How the device's speed changed while a worker measured: its last step time over its first, 1 for not at all.

    `phase` of the probe, `explore` or `fill`; `after_s` is how long after the worker's first step the change was found.
    """

    phase: str
    factor: float
    after_s: float


class HotPoint(Record):
    """A point measured once more, after the device's speed had changed."""

    point: CurvePoint


class Work(Record):
    """Operations of one sample's forward pass, and the seconds of an update; None where they are not known."""

    forward_flops: float | None
    update_s: Seconds | None = None
