"""What `run` and `balance` leave in a journal as they go: windows, rounds, and the probe that a balance made."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from pydantic import Field, model_validator

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.timings import Timings
from gpubalance.results.common import Model
from gpubalance.results.run import Measurement
from gpubalance.results.timing import Timing
from gpubalance.settings.record import Batch, Record
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Peak

_JOINT = "joint"  # what stands in a journal for all devices together


class RunKey(Record):
    """The run that a window belongs to: its devices with samples (UUIDs), their model, and which proof of a balance."""

    devices: tuple[str, ...]
    model: Model
    proof: int = 0

    def is_like(self, other: RunKey) -> bool:
        """Whether it is the same run; of an older journal not all of its model is known."""
        return self.model.is_like(other.model) and self.model_copy(update={"model": other.model}) == other


class KeptWindow(Record):
    """A window of a split. `name` is "even", or "" for the run's own split; `throttled` has each device's reasons."""

    run: RunKey
    name: str
    split: Shares
    timings: Annotated[tuple[Timing, ...], Field(min_length=1)]
    stamped: Annotated[tuple[Timing, ...], Field(min_length=1)]
    memory_peak_bytes: tuple[Peak, ...]
    throttled: tuple[tuple[str, ...], ...]
    late_part: Annotated[float, Field(ge=0, le=1)]

    @model_validator(mode="after")
    def _has_a_value_for_each_device(self) -> KeptWindow:
        devices = len(self.split.batches)
        lengths = {len(values) for values in (self.memory_peak_bytes, self.throttled, self.run.devices)}
        lengths |= {len(values or ()) for one in self.stamped for values in (one.compute_s, one.update_s)}
        if lengths != {devices}:
            raise ValueError("a value for each device is needed")
        return self


class KeptProbe(Record):
    """When a balance made its probe; null while that goes on."""

    created: str | None


class KeptRound(Record):
    """A split that a balance tried, and when the probe was made that it was planned with.

    Where the split ran out of memory, `measured` is null and `limits` has (device, its largest micro-batch) of each
    device that holds less than was thought.
    """

    probe: str
    split: Shares
    measured: Measurement | None
    limits: tuple[tuple[Annotated[int, Field(ge=0)], Batch], ...] = ()

    @model_validator(mode="after")
    def _is_of_these_devices(self) -> KeptRound:
        replicas = self.measured.replicas if self.measured else ()
        if self.measured and [one.device for one in replicas] != list(self.split.used):
            raise ValueError("it is not of the devices that have samples")
        if not all(one.compute_s > 0 for one in replicas):
            raise ValueError("a compute time is above 0")
        if any(device >= len(self.split.batches) for device, _ in self.limits):
            raise ValueError("a limit is of one of the devices")
        return self


class Kept:
    """The journal of a joint measurement; without a journal nothing is kept. Gives each thing that was left once."""

    def __init__(self, journal: Journal | None, watch: Watch) -> None:
        self._keep: Callable[[Record], None] = lambda _: None
        if journal is not None:
            journal.tell = lambda text: watch(Doing(text))
            self._keep = partial(journal.add, _JOINT)
        self._windows = journal.of(_JOINT, KeptWindow) if journal else []
        self._rounds = journal.of(_JOINT, KeptRound) if journal else []
        self._probes = journal.of(_JOINT, KeptProbe) if journal else []

    @property
    def is_probing(self) -> bool:
        """Whether it was interrupted while it made a probe of its own, of which something was measured."""
        return bool(self._probes) and self._probes[-1].created is None

    @property
    def probed(self) -> str | None:
        """When the probe was made that was planned with; None where nothing was left."""
        made = [one.created for one in self._probes] or [one.probe for one in self._rounds]
        return made[-1] if made else None

    def probe(self, created: str | None) -> None:
        """Keeps when this balance made its probe, null as it begins. Of one that was there before, the rounds tell."""
        self._keep(KeptProbe(created=created))

    def restore(self, run: RunKey, series: Series) -> list[Timings]:
        """Adds the windows that were left of its split in that run to the series, and gives each by itself."""
        wanted = series.name, series.split
        found = [one for one in self._windows if (one.name, one.split) == wanted and one.run.is_like(run)]
        self._windows = [one for one in self._windows if one not in found]
        return [
            series.add(one.timings, one.stamped, one.memory_peak_bytes, one.throttled, one.late_part)
            for one in _ending_now(found)
        ]

    def window(self, run: RunKey, name: str, window: Timings) -> None:
        """Keeps a window that is over."""
        self._keep(
            KeptWindow(
                run=run,
                name=name,
                split=window.split,
                timings=tuple(window.timings),
                stamped=tuple(window.stamped),
                memory_peak_bytes=window.memory_peak_bytes,
                throttled=window.throttled,
                late_part=window.late_part,
            )
        )

    def left_of(self, split: Shares, probe: str, *, ran_out: bool = False) -> KeptRound | None:
        """What was left of the split's next round by the same probe; with `ran_out` only if that ran out of memory."""
        left = next((one for one in self._rounds if (one.split, one.probe) == (split, probe)), None)
        if left is None or (ran_out and left.measured):
            return None
        self._rounds.remove(left)
        return left

    def round(self, tried: KeptRound) -> None:
        """Keeps a round that is over."""
        self._keep(tried)


def _ending_now(windows: Sequence[KeptWindow]) -> list[KeptWindow]:
    delays = delays_s([(*window.timings, *window.stamped) for window in windows])
    return [
        window.model_copy(update={name: later(getattr(window, name), delay_s) for name in ("timings", "stamped")})
        for window, delay_s in zip(windows, delays, strict=True)
    ]


def delays_s(windows: Sequence[Sequence[Timing]]) -> list[float]:
    """How much later each must be for them to follow each other and to end now: at a boot their clock begins again."""
    end_s, delays = time.monotonic(), list[float]()
    for timings in reversed(windows):
        delays.insert(0, end_s - max(one.ended_s for one in timings))
        end_s = delays[0] + min(one.ended_s - one.seconds for one in timings)
    return delays


def later(timings: Sequence[Timing], seconds: float) -> tuple[Timing, ...]:
    """The same timings so much later."""
    return tuple(one.model_copy(update={"ended_s": one.ended_s + seconds}) for one in timings)
