"""What `independent` writes to a journal as it goes: its windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from pydantic import Field

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.independent.replica import Replica
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.kept import delays_s, later
from gpubalance.jobs.measure.timings import Timings
from gpubalance.results.common import Model
from gpubalance.results.timing import Timing
from gpubalance.settings.record import Record, Seconds
from gpubalance.workers.messages import Peak

_TOGETHER = "independent"  # a journal's device name for all devices together


class KeptPart(Record):
    """What counts of a device's timings in a window; `device` is its UUID."""

    device: str
    model: Model
    timings: Annotated[tuple[Timing, ...], Field(min_length=1)]
    memory_peak_bytes: Peak
    throttled: tuple[str, ...]
    late_part: Annotated[float, Field(ge=0, le=1)]


class KeptTurn(Record):
    """A window of one device alone, with `overlap_s` null, or of several at once."""

    overlap_s: Seconds | None
    parts: Annotated[tuple[KeptPart, ...], Field(min_length=1)]


class KeptTurns:
    """The windows in the journal of independent models; without a journal nothing is kept."""

    def __init__(self, journal: Journal | None, watch: Watch) -> None:
        self._keep: Callable[[Record], None] = lambda _: None
        if journal is not None:
            journal.tell = lambda text: watch(Doing(text))
            self._keep = partial(journal.add, _TOGETHER)
        self._left = _ending_now(journal.of(_TOGETHER, KeptTurn)) if journal else []

    def keep(self, replicas: Sequence[Replica], windows: Sequence[Timings], overlap_s: float | None) -> None:
        """Keeps a finished window of these devices; `overlap_s` is None for one device alone."""
        parts = (_part(*each) for each in zip(replicas, windows, strict=True))
        self._keep(KeptTurn(overlap_s=overlap_s, parts=tuple(parts)))

    def left_of(self, replicas: Sequence[Replica], *, at_once: bool) -> list[KeptTurn]:
        """The windows left by an interrupted command for exactly these devices and models, alone or at once."""
        wanted = [(one.device.uuid, one.facts.model if one.facts else None) for one in replicas]
        return [
            turn
            for turn in self._left
            if (turn.overlap_s is not None) == at_once and [(p.device, p.model) for p in turn.parts] == wanted
        ]


def _ending_now(turns: Sequence[KeptTurn]) -> list[KeptTurn]:
    delays = delays_s([[timing for part in turn.parts for timing in part.timings] for turn in turns])
    return [
        turn.model_copy(update={"parts": tuple(_later(part, delay_s) for part in turn.parts)})
        for turn, delay_s in zip(turns, delays, strict=True)
    ]


def _later(part: KeptPart, seconds: float) -> KeptPart:
    return part.model_copy(update={"timings": later(part.timings, seconds)})


def _part(replica: Replica, window: Timings) -> KeptPart:
    assert replica.facts is not None  # noqa: S101  (it was measured)
    return KeptPart(
        device=replica.device.uuid,
        model=replica.facts.model,
        timings=tuple(window.timings),
        memory_peak_bytes=window.memory_peak_bytes[0],
        throttled=window.throttled[0],
        late_part=window.late_part,
    )
