"""Measures models that train independently, in windows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from gpubalance.errors import BadInput, GpubalanceError, OutOfMemory, TimeLimitPassed
from gpubalance.jobs.events import Doing, TimeLeft, TurnDone, Watch
from gpubalance.jobs.independent.kept import KeptTurn, KeptTurns
from gpubalance.jobs.independent.replica import ALONE, AT_ONCE, Replica
from gpubalance.jobs.independent.window import CommonWindow
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.timings import Timings
from gpubalance.jobs.measure.warnings import PRECISE_ENOUGH, slowed_text
from gpubalance.numbers.units import format_percent
from gpubalance.results.independent import OwnWindow
from gpubalance.settings.device import Device
from gpubalance.settings.requests import IndependentRequest
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

T = TypeVar("T")


class Turns:
    """Windows of each device alone and of all at once, in turns, so that a drifting machine affects both alike.

    The party has a worker for each device. A device that fails drops out, with its error, and the others go on: what
    all gave at once is then measured again without it.
    """

    def __init__(self, request: IndependentRequest, party: Party, kept: KeptTurns, watch: Watch) -> None:
        self.replicas = tuple(
            Replica(number, device, model, batch, watch, pipeline=request.settings.data is not None)
            for number, (device, model, batch) in enumerate(
                zip(request.devices, request.models, request.batches, strict=True)
            )
        )
        self.overlap_s = 0.0
        self.resumed = 0
        self._at_once_windows = 0
        self._measured_again = False
        self._measuring = request.measuring
        self._length = Length.of_window(request.measuring)
        self._party = party
        self._kept = kept
        self._watch = watch

    @property
    def going(self) -> list[Replica]:
        """The devices that have not failed."""
        return [one for one in self.replicas if one.error is None]

    @property
    def never_fit(self) -> bool:
        """Whether a device's memory did not hold its batch from the start, as it will not the next time."""
        return any(isinstance(one.error, OutOfMemory) and not one.alone.timings for one in self.replicas)

    @property
    def series(self) -> list[Series]:
        """The series measured on them: each alone, and each at once with the others if there are several."""
        return [series for one in self.going for series in (one.alone, *([one.at_once] if self._several else []))]

    @property
    def slowed(self) -> list[tuple[Device, tuple[str, ...]]]:
        """Each GPU that was throttled in the windows at once for a reason that passes, with NVML's reasons."""
        found = [(one.device, one.at_once.throttled[0]) for one in self.going]
        return [(device, reasons) for device, reasons in found if reasons]

    @property
    def _several(self) -> bool:
        """Whether at least two devices are left to measure at once."""
        return len(self.going) > 1

    def measure(self) -> None:
        """Measures until all is known or no device is left. Raises BadInput and TimeLimitPassed, no device's fault."""
        self._each("warming up all devices at once", Replica.warm_up, self.going)
        for one in self.going:
            self._take_over(self._kept.left_of([one], at_once=False), [one], at_once=False)
        self._take_over_at_once()
        of = self._measuring.windows
        while self.going:
            number = 1 + min(self._windows())
            if number > of and not self._once_more(of):
                return
            of = max(of, number)
            self._take_turns(number, of)

    def _windows(self) -> list[int]:
        """The number of windows of each device alone, and of all at once."""
        return [*(one.alone.windows for one in self.going), *([self._at_once_windows] if self._several else [])]

    def _take_turns(self, number: int, of: int) -> None:
        """Measures window `number` of each device alone and of all at once, unless it is already there."""
        began_s = time.monotonic()
        turns: list[Callable[[], None]] = [
            *(partial(self._alone, one, number, of) for one in self.going),
            partial(self._at_once, number, of),
        ]
        # They alternate in going first: as cards get hotter, the last one is always a little slower.
        for turn in turns if number % 2 else reversed(turns):
            turn()
        self._watch(TimeLeft((of - number) * (time.monotonic() - began_s)))

    def _alone(self, one: Replica, number: int, of: int) -> None:
        if one.alone.windows >= number or one.error is not None:
            return
        doing = f"measuring {one.device.label} alone, window {number} of {of}"
        measure = partial(Replica.measure_alone, length=self._length)
        windows = self._each(doing, measure, [one])
        if one.number in windows:
            self._done(number, of, [one], windows, None)

    def _at_once(self, number: int, of: int) -> None:
        """Measures a window of all devices at once; it does not count if one of them fails."""
        those = self.going
        if self._at_once_windows >= number or not self._several:
            return
        window = CommonWindow([one.number for one in those], self._length)
        doing = f"measuring all {len(those)} devices at once, window {number} of {of}"
        measured = self._each(
            doing, partial(Replica.measure_at_once, window=window, timing_s=self._length.timing_s), those
        )
        if len(measured) == len(those):
            windows = {one.number: one.add(window.counted[one.number], measured[one.number]) for one in those}
            self._at_once_windows += 1
            self.overlap_s += window.overlap_s
            self._done(number, of, those, windows, window.overlap_s)

    def _each(self, doing: str, work: Callable[[Replica, Worker], T], those: Sequence[Replica]) -> dict[int, T]:
        """The results of `work` on these devices at the same time, by their numbers. A device that fails drops out."""
        self._watch(Doing(doing))
        among = [one.number for one in those]
        answers = self._party.each(lambda number, worker: work(self.replicas[number], worker), among)
        self._leave_out(self._party.failures)
        return answers

    def _leave_out(self, failures: Mapping[int, GpubalanceError]) -> None:
        """Drops failed devices, and begins `at once` again without them. Raises an error that is no device's fault."""
        for number, error in sorted(failures.items()):
            if isinstance(error, BadInput | TimeLimitPassed):
                raise error
            self.replicas[number].error = error
            self._watch(Doing(f"{self.replicas[number].device.label} dropped out: {error.message}"))
        if failures:
            for one in self.replicas:
                one.begin_again()
            self._at_once_windows, self.overlap_s = 0, 0.0
            self._take_over_at_once()

    def _take_over_at_once(self) -> None:
        if self._several:
            self._take_over(self._kept.left_of(self.going, at_once=True), self.going, at_once=True)

    def _take_over(self, turns: Sequence[KeptTurn], those: Sequence[Replica], *, at_once: bool) -> None:
        """Adds the windows that an interrupted command left, and emits events for them as if they were measured now."""
        of = max(self._measuring.windows, len(turns))
        for number, turn in enumerate(turns, 1):
            windows = {}
            for one, part in zip(those, turn.parts, strict=True):
                series = one.at_once if at_once else one.alone
                peaks, throttled = (part.memory_peak_bytes,), (part.throttled,)
                windows[one.number] = series.add(part.timings, (), peaks, throttled, part.late_part)
            self.resumed += 1
            self._at_once_windows += at_once
            self.overlap_s += turn.overlap_s or 0.0
            self._tell(number, of, those, windows, at_once=at_once)

    def _done(
        self, number: int, of: int, those: Sequence[Replica], windows: Mapping[int, Timings], overlap_s: float | None
    ) -> None:
        self._kept.keep(those, [windows[one.number] for one in those], overlap_s)
        self._tell(number, of, those, windows, at_once=overlap_s is not None)

    def _tell(
        self, number: int, of: int, those: Sequence[Replica], windows: Mapping[int, Timings], *, at_once: bool
    ) -> None:
        parts = tuple(_told(one, windows[one.number]) for one in those)
        self._watch(TurnDone(number, of, AT_ONCE if at_once else ALONE, parts))

    def _once_more(self, windows: int) -> bool:
        """Whether one window more than was asked for is needed; if so, says why."""
        imprecise = any(series.precision > PRECISE_ENOUGH for series in self.series)
        if imprecise and windows < self._measuring.max_windows:
            self._watch(Doing(f"not yet known within ± {format_percent(PRECISE_ENOUGH)} (95 %): one more window"))
            return True
        if self.slowed and not self._measured_again:
            self._measured_again = True
            self._watch(Doing(f"{slowed_text(self.slowed)}: measuring once more"))
            return True
        return False


def _told(one: Replica, window: Timings) -> OwnWindow:
    told = window.sensors.telemetry(window.began_s)
    return OwnWindow(
        device=one.device,
        batch=one.batch,
        step_time_s=window.step_time(window.began_s),
        throughput=window.throughput,
        memory_peak_bytes=window.memory_peak_bytes[0],
        telemetry=told[0] if told else None,
    )
