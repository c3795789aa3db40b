"""What a command would do: the record of `--dry-run`."""

from __future__ import annotations

from pydantic import Field

from gpubalance.numbers.units import DurationRange
from gpubalance.settings.record import Record
from gpubalance.settings.requests import MeasureRequest, QueueRequest

KINDS = tuple(
    f"{command}-estimate"
    for command in ("probe", "balance", "layers", "run", "independent", "queue")
)


class PhaseEstimate(Record):
    """A part of a command, and about how long it takes; phases of one `key` take equally long.

    If it is `guessed`, no such phase was measured on this machine: that is usual for small models.
    It takes up to `more_s` longer if windows follow the planned ones.
    """

    name: str
    seconds: float
    guessed: bool
    key: str = Field(default="", exclude=True)
    more_s: float = Field(default=0.0, exclude=True)

    @property
    def duration(self) -> DurationRange:
        """From `seconds` to `seconds` + `more_s`."""
        return DurationRange(self.seconds, self.seconds + self.more_s)

    def with_duration(self, duration: DurationRange) -> PhaseEstimate:
        """The phase, which takes so long."""
        more_s = duration.most_s - duration.least_s
        return self.model_copy(update={"seconds": duration.least_s, "more_s": more_s})


class Estimate(Record):
    """What a command would do.

    `probed` is when the probe that it starts from was made, null if it will make one. A queue's
    commands take a time that nobody knows: it has no phases, and `seconds` is null. `resumed` are
    the numbers of those that succeeded before and would not be run again.
    """

    kind: str
    request: MeasureRequest | QueueRequest
    probed: str | None
    phases: tuple[PhaseEstimate, ...]
    seconds: float | None
    resumed: tuple[int, ...] = ()
