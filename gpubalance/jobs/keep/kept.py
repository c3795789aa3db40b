"""What joint measurements leave in a journal as they go: windows of a run, and the probe and rounds of `balance`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.measure.series import Series
from gpubalance.results.common import Model
from gpubalance.results.run import Measurement
from gpubalance.settings.record import Batch, Record
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Peak, Timing

_JOINT = "joint"  # they are of no one device


class RunKey(Record):
    """Which run a window is of: its devices with samples (UUIDs), what they train, and which proof of a `balance`."""

    devices: tuple[str, ...]
    model: Model
    proof: int = 0


class KeptWindow(Record):
    """A window of a split, timing by timing. `name` is "even", or "" for the run's own split.

    Its times are on the monotonic clock, which begins anew with each boot of the machine. `throttled` has NVML's
    reasons, of each device.
    """

    run: RunKey
    name: str
    batches: tuple[Batch, ...]
    micro_batches: tuple[Batch, ...]
    timings: Annotated[tuple[Timing, ...], Field(min_length=1)]
    stamped: Annotated[tuple[Timing, ...], Field(min_length=1)]
    memory_peak_bytes: tuple[Peak, ...]
    throttled: tuple[tuple[str, ...], ...]
    late_part: Annotated[float, Field(ge=0, le=1)]
    boot: str

    @model_validator(mode="after")
    def _of_each_device(self) -> KeptWindow:
        of_each = (self.micro_batches, self.memory_peak_bytes, self.throttled, self.run.devices)
        if any(len(values) != len(self.batches) for values in of_each) or any(
            len(one.compute_s or ()) != len(self.batches) for one in self.stamped
        ):
            raise ValueError("a value for each device is needed")
        return self


class KeptProbe(Record):
    """When the probe was made that a `balance` plans with."""

    created: str


class KeptRound(Record):
    """A split that `balance` tried by the probe of that time. Where it ran out of memory `measured` is null, and
    `limits` the devices that hold less than was thought: (device, the largest micro-batch).
    """

    probe: str
    batches: tuple[Batch, ...]
    micro_batches: tuple[Batch, ...]
    measured: Measurement | None
    limits: tuple[tuple[Annotated[int, Field(ge=0)], Batch], ...] = ()

    @model_validator(mode="after")
    def _of_these_devices(self) -> KeptRound:
        used = [device for device, batch in enumerate(self.batches) if batch]
        if self.measured is not None and [one.device for one in self.measured.replicas] != used:
            raise ValueError("it is not of the devices that have samples")
        if self.measured is not None and not all(one.compute_s > 0 for one in self.measured.replicas):
            raise ValueError("a compute time is above 0")
        if any(device >= len(self.batches) for device, _ in self.limits):
            raise ValueError("a limit is of one of the devices")
        return self


class Kept:
    """The journal of a joint measurement; without one nothing is kept. What was left is given once, in its order."""

    def __init__(self, journal: Journal | None, watch: Watch) -> None:
        self._journal = journal
        if journal is not None:
            journal.tell = lambda text: watch(Doing(text))
        self._windows = journal.of(_JOINT, KeptWindow) if journal else []
        self._rounds = journal.of(_JOINT, KeptRound) if journal else []
        self._probes = journal.of(_JOINT, KeptProbe) if journal else []
        self._of_probe: list[KeptProbe] = []

    @property
    def probed(self) -> str | None:
        """When the probe was made that was planned with."""
        return self._probes[-1].created if self._probes else None

    def probe(self, created: str, *, new: bool) -> None:
        """Keeps which one it is. One that is not new only beside what is measured by it: before that nothing may take
        the place of what an interrupted command has left.
        """
        self._of_probe = [KeptProbe(created=created)] if created != self.probed else []
        if new:
            self._add()

    def restore(self, run: RunKey, name: str, series: Series) -> list[Series]:
        """Adds the windows to the series that were left of its split in that run, and gives each by itself."""
        split = run, name, series.batches, series.at_a_time
        found = [one for one in self._windows if (one.run, one.name, one.batches, one.micro_batches) == split]
        self._windows = [one for one in self._windows if one not in found]
        return [
            series.add(one.timings, one.stamped, one.memory_peak_bytes, one.throttled, one.late_part)
            for one in _before_now(found)
        ]

    def window(self, run: RunKey, name: str, window: Series) -> None:
        """Keeps one that is over."""
        if self._journal is None:
            return
        self._add(
            KeptWindow(
                run=run,
                name=name,
                batches=window.batches,
                micro_batches=window.at_a_time,
                timings=tuple(window.timings),
                stamped=tuple(window.stamped),
                memory_peak_bytes=window.memory_peak_bytes,
                throttled=window.throttled,
                late_part=window.late_part,
                boot=_boot(),
            )
        )

    def left_of(self, split: Shares, probe: str) -> KeptRound | None:
        """What was left of a round of that split, by the same probe."""
        return self._taken(split, probe, self._rounds)

    def ran_out(self, split: Shares, probe: str) -> KeptRound | None:
        """Where that split ran out of memory once more, after it had been measured: in its proof."""
        return self._taken(split, probe, [one for one in self._rounds if one.measured is None])

    def _taken(self, split: Shares, probe: str, rounds: Sequence[KeptRound]) -> KeptRound | None:
        wanted = probe, split.batches, split.micro_batches
        for one in rounds:
            if (one.probe, one.batches, one.micro_batches) == wanted:
                self._rounds.remove(one)
                return one
        return None

    def round(
        self, split: Shares, probe: str, measured: Measurement | None, limits: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Keeps one that is over."""
        if self._journal is None:
            return
        self._add(
            KeptRound(
                probe=probe,
                batches=split.batches,
                micro_batches=split.micro_batches,
                measured=measured,
                limits=tuple(limits),
            )
        )

    def _add(self, *records: Record) -> None:
        for record in (*self._of_probe, *records):
            if self._journal is not None:
                self._journal.add(_JOINT, record)
        self._of_probe = []


def _before_now(windows: Sequence[KeptWindow]) -> list[KeptWindow]:
    """The same on this boot's monotonic clock: those of another boot as if each had ended when the next began."""
    next_s, moved = time.monotonic(), []
    for window in reversed(windows):
        both = (*window.timings, *window.stamped)
        later_s = next_s - max(one.ended_s for one in both)
        if window.boot == _boot():
            later_s = min(0.0, later_s)
        next_s = min(one.ended_s - one.seconds for one in both) + later_s
        times = {name: _later(getattr(window, name), later_s) for name in ("timings", "stamped")}
        moved.append(window.model_copy(update=times))
    return moved[::-1]


def _boot() -> str:
    """Another one after each boot; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _later(timings: Sequence[Timing], seconds: float) -> tuple[Timing, ...]:
    return tuple(one.model_copy(update={"ended_s": one.ended_s + seconds}) for one in timings)
