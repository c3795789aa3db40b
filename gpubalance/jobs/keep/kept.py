"""What `run` and `balance` write to a journal as they go: windows, rounds, and the probe that a balance made."""

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

_JOINT = "joint"  # a journal's device name for all devices together


class RunKey(Record):
    """The run that a window belongs to: its devices with samples (UUIDs), their model, and the number of a proof."""

    devices: tuple[str, ...]
    model: Model
    proof: int = 0

    def is_like(self, other: RunKey) -> bool:
        """Whether it is the same run; an older journal does not have all of the model's facts."""
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
    """When a balance finished its own probe; null while it is still probing."""

    created: str | None


class KeptRound(Record):
    """A split that a balance tried; `probe` says when the probe that it was planned with was made.

    If the split ran out of memory, `measured` is null and `limits` has (device, its largest micro-batch) for each
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
    """What the journal of a joint measurement has, each thing handed out once; without a journal nothing is kept."""

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
        """Whether the command was interrupted during a probe of its own that had measured something."""
        return bool(self._probes) and self._probes[-1].created is None

    @property
    def probed(self) -> str | None:
        """When the probe that the command planned with was made; None if nothing was left."""
        made = [one.created for one in self._probes] or [one.probe for one in self._rounds]
        return made[-1] if made else None

    def probe(self, created: str | None) -> None:
        """Keeps when this balance made its own probe, None while that goes on. Rounds name a probe that it found."""
        self._keep(KeptProbe(created=created))

    def restore(self, run: RunKey, series: Series) -> list[Timings]:
        """Adds the windows left of the series' split in that run to the series, and returns each."""
        wanted = series.name, series.split
        found = [one for one in self._windows if (one.name, one.split) == wanted and one.run.is_like(run)]
        self._windows = [one for one in self._windows if one not in found]
        return [
            series.add(one.timings, one.stamped, one.memory_peak_bytes, one.throttled, one.late_part)
            for one in _ending_now(found)
        ]

    def window(self, run: RunKey, name: str, window: Timings) -> None:
        """Keeps a finished window."""
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
        """The split's next round left by the same probe, or None; with `ran_out` only if it ran out of memory."""
        left = next((one for one in self._rounds if (one.split, one.probe) == (split, probe)), None)
        if left is None or (ran_out and left.measured):
            return None
        self._rounds.remove(left)
        return left

    def round(self, tried: KeptRound) -> None:
        """Keeps a finished round."""
        self._keep(tried)


def _ending_now(windows: Sequence[KeptWindow]) -> list[KeptWindow]:
    delays = delays_s([(*window.timings, *window.stamped) for window in windows])
    return [
        window.model_copy(update={name: later(getattr(window, name), delay_s) for name in ("timings", "stamped")})
        for window, delay_s in zip(windows, delays, strict=True)
    ]


def delays_s(windows: Sequence[Sequence[Timing]]) -> list[float]:
    """The shifts that make each window follow the one before and the last end now: a boot resets the clock."""
    end_s, delays = time.monotonic(), list[float]()
    for timings in reversed(windows):
        delays.insert(0, end_s - max(one.ended_s for one in timings))
        end_s = delays[0] + min(one.ended_s - one.seconds for one in timings)
    return delays


def later(timings: Sequence[Timing], seconds: float) -> tuple[Timing, ...]:
    """The timings, shifted to end `seconds` later."""
    return tuple(one.model_copy(update={"ended_s": one.ended_s + seconds}) for one in timings)
