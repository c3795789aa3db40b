"""What joint measurements leave in a journal as they go: windows of a split, and the rounds of `balance`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from gpubalance.config import BalanceRequest, Batch, Measuring, Record, RunRequest
from gpubalance.errors import EnvironmentFault, InUse
from gpubalance.planning.problem import Allocation
from gpubalance.results.run import Measurement
from gpubalance.stages.events import Doing, Watch
from gpubalance.stages.journal import NOTHING_LEFT, Journal, content_key, software_key
from gpubalance.stages.series import Series
from gpubalance.workers.messages import Peak, Sample

_JOINT = "joint"  # they are of no one device


class KeptWindow(Record):
    """A window of a split, sample by sample. `name` is "even", or "" for the run's own split.

    Its times are on the monotonic clock, which begins anew with each boot of the machine.
    """

    name: str
    batches: tuple[Batch, ...]
    micro_batches: tuple[Batch, ...] | None
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]
    stamped: Annotated[tuple[Sample, ...], Field(min_length=1)]
    memory_peak_bytes: tuple[Peak, ...]
    late_part: Annotated[float, Field(ge=0, le=1)]
    boot: str

    @model_validator(mode="after")
    def _of_each_device(self) -> KeptWindow:
        of_each = (self.memory_peak_bytes, *(one.compute_s or () for one in self.stamped))
        if any(len(values) != len(self.batches) for values in of_each):
            raise ValueError("a value for each device is needed")
        return self


class KeptRound(Record):
    """A split that `balance` tried by the probe of that time. Where it ran out of memory `measured` is null, and
    `limits` the devices that hold less than was thought: (device, the largest micro-batch).
    """

    probe: str
    batches: tuple[Batch, ...]
    micro_batches: tuple[Batch, ...]
    measured: Measurement | None
    limits: tuple[tuple[Batch, Batch], ...] = ()

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
    """The journal of a joint measurement; without one nothing is kept. What was left is given once, in its order.

    A disk that is full ends the keeping, and no measurement: it is said to `watch`.
    """

    def __init__(self, journal: Journal | None, watch: Watch) -> None:
        self._journal = journal
        self._watch = watch
        self._windows = journal.of(_JOINT, KeptWindow) if journal else []
        self._rounds = journal.of(_JOINT, KeptRound) if journal else []

    def restore(self, name: str, series: Series) -> None:
        """Adds the windows to the series that were left of its split."""
        split = name, series.batches, series.micro_batches
        found = [one for one in self._windows if (one.name, one.batches, one.micro_batches) == split]
        for window in _before_now(found):
            series.add(window.samples, window.stamped, window.late_part)
            series.note_peaks(window.memory_peak_bytes)
        self._windows = [one for one in self._windows if one not in found]

    def window(self, name: str, window: Series) -> None:
        """Keeps one that is over."""
        self._add(
            KeptWindow(
                name=name,
                batches=window.batches,
                micro_batches=window.micro_batches,
                samples=tuple(window.samples),
                stamped=tuple(window.stamped),
                memory_peak_bytes=window.memory_peak_bytes,
                late_part=window.late_part,
                boot=_boot(),
            )
        )

    def left_of(self, split: Allocation, probe: str) -> KeptRound | None:
        """What was left of a round of that split, by the same probe."""
        wanted = probe, split.batches, split.micro_batches
        for one in self._rounds:
            if (one.probe, one.batches, one.micro_batches) == wanted:
                self._rounds.remove(one)
                return one
        return None

    def round(
        self, split: Allocation, probe: str, measured: Measurement | None, limits: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Keeps one that is over."""
        self._add(
            KeptRound(
                probe=probe,
                batches=split.batches,
                micro_batches=split.micro_batches,
                measured=measured,
                limits=tuple(limits),
            )
        )

    def _add(self, record: Record) -> None:
        if self._journal is None:
            return
        try:
            self._journal.add(_JOINT, record)
        except EnvironmentFault as error:
            self._journal = None
            self._watch(Doing(f"{error.message}: going on, and nothing is kept for --resume"))


def tell_resumed(journal: Journal | None, watch: Watch) -> None:
    """Whether there is something to go on with, where that was asked for."""
    if journal is not None and journal.resume:
        watch(Doing("going on with what was measured before" if journal.resumed else NOTHING_LEFT))


def run_journal(request: RunRequest, *, resume: bool) -> Journal:
    """The journal of a run of that split: more windows, or another time limit, are the same run."""
    key = content_key(
        "run",
        *request.devices,
        *request.batches,
        *request.at_a_time,
        request.settings,
        request.joint,
        _without_bounds(request.measuring),
        software_key(request.settings.model),
    )
    return _journal(key, "a run of the same split and settings", resume=resume)


def balance_journal(request: BalanceRequest, *, resume: bool) -> Journal:
    """The journal of a balance: more rounds or windows, or another time limit, are the same one."""
    measuring = _without_bounds(request.measuring)
    same = request.model_copy(update={"measuring": measuring, "rounds": 1, "fresh": False, "tracing": None})
    key = content_key("balance", same, software_key(request.settings.model))
    return _journal(key, "a balance of the same devices and settings", resume=resume)


def _without_bounds(measuring: Measuring) -> Measuring:
    return measuring.model_copy(update={"windows": 1, "deadline_s": None, "time_limit_s": None})


def _journal(key: str, what: str, *, resume: bool) -> Journal:
    """GPUs are kept apart by locks of their own; simulated devices may be used by several at once, each with its own
    journal.
    """
    for number in itertools.count():
        try:
            return Journal(f"{key}-{number}" if number else key, what, resume=resume)
        except InUse:
            continue
    raise AssertionError


def _boot() -> str:
    """Another one after each boot; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _before_now(windows: Sequence[KeptWindow]) -> list[KeptWindow]:
    """The same on this boot's monotonic clock: those of another boot as if each had ended when the next began."""
    next_s, moved = time.monotonic(), []
    for window in reversed(windows):
        both = (*window.samples, *window.stamped)
        later_s = next_s - max(one.ended_s for one in both)
        if window.boot == _boot():
            later_s = min(0.0, later_s)
        next_s = min(one.ended_s - one.seconds for one in both) + later_s
        times = {name: _later(getattr(window, name), later_s) for name in ("samples", "stamped")}
        moved.append(window.model_copy(update=times))
    return moved[::-1]


def _later(samples: Sequence[Sample], seconds: float) -> tuple[Sample, ...]:
    return tuple(one.model_copy(update={"ended_s": one.ended_s + seconds}) for one in samples)
