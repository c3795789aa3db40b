"""Measures models that train independently, in windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gpubalance.errors import BadInput, GpubalanceError, OutOfMemory, TimeLimitPassed
from gpubalance.jobs.events import Doing, TurnDone, Watch
from gpubalance.jobs.independent.replica import ALONE, AT_ONCE, Replica
from gpubalance.jobs.independent.window import AllAtOnce, CommonWindow
from gpubalance.jobs.keep.journal import content_key
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.timings import Timings
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.jobs.measure.warnings import Slowed
from gpubalance.jobs.measure.window import Window
from gpubalance.results.independent import OwnWindow
from gpubalance.settings.requests import IndependentRequest
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

T = TypeVar("T")


@dataclass
class AtOnce:
    """The devices that have not failed, measured at the same time; `overlap_s` is for how long all were."""

    replicas: Sequence[Replica]
    windows: int = 0
    overlap_s: float = 0.0

    @property
    def precision(self) -> float:
        """That of the device that is known least exactly."""
        return max(one.at_once.precision for one in self.replicas)


class Turns:
    """Windows of each device alone and of all at once, in turns.

    The party has a worker for each device. A device that fails drops out, with its error, and the others go on: what
    all gave at once is then measured again without it.
    """

    def __init__(self, request: IndependentRequest, party: Party, once: Once, watch: Watch) -> None:
        self.replicas = tuple(
            Replica(number, device, model, batch, watch, pipeline=request.settings.data is not None)
            for number, (device, model, batch) in enumerate(
                zip(request.devices, request.models, request.batches, strict=True)
            )
        )
        self.at_once = AtOnce(self.replicas)
        self.resumed = 0
        self._measuring = request.measuring
        self._length = Length.of_window(request.measuring)
        self._party = party
        self._once = once
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
        several = len(self.going) > 1
        return [series for one in self.going for series in (one.alone, *([one.at_once] if several else []))]

    @property
    def slowed(self) -> Slowed:
        """Each GPU that was throttled in the windows at once for a reason that passes, with NVML's reasons."""
        found = [(one.device, one.at_once.throttled[0]) for one in self.going]
        return [(device, reasons) for device, reasons in found if reasons]

    def measure(self) -> None:
        """Measures until all is known or no device is left. Raises BadInput and TimeLimitPassed, no device's fault."""
        self._each("warming up all devices at once", Replica.warm_up, self.going)
        in_turns(self._subjects, self._turn, self._measuring, lambda: self.slowed, self._watch)

    def _subjects(self) -> list[Series | AtOnce]:
        return [*(one.alone for one in self.going), *([self.at_once] if len(self.going) > 1 else [])]

    def _turn(self, subject: Series | AtOnce, number: int, of: int) -> None:
        if isinstance(subject, AtOnce):
            self._all_at_once(subject, number, of)
        else:
            self._alone(next(one for one in self.going if one.alone is subject), number, of)

    def _alone(self, one: Replica, number: int, of: int) -> None:
        key = _key("alone", [one], number)
        window = self._once.had(key, Window)
        if window is not None:
            one.alone.add(window)
            self.resumed += 1
        else:
            doing = f"measuring {one.device.label} alone, window {number} of {of}"
            found = self._each(doing, partial(Replica.measure_alone, length=self._length), [one])
            if one.number not in found:
                return
            window = found[one.number]
            self._once.keep(key, window)
        self._watch(TurnDone(number, of, ALONE, (_told(one, one.alone, window),)))

    def _all_at_once(self, those: AtOnce, number: int, of: int) -> None:
        """A window of all devices at once; it does not count if one of them fails."""
        key = _key("at once", those.replicas, number)
        window = self._once.had(key, AllAtOnce)
        if window is not None and len(window.parts) == len(those.replicas):
            self.resumed += 1
        else:
            common = CommonWindow([one.number for one in those.replicas], self._length)
            doing = f"measuring all {len(those.replicas)} devices at once, window {number} of {of}"
            measure = partial(Replica.measure_at_once, window=common, timing_s=self._length.timing_s)
            measured = self._each(doing, measure, those.replicas)
            if len(measured) < len(those.replicas):
                return
            parts = tuple(one.part_of(common, measured[one.number]) for one in those.replicas)
            window = AllAtOnce(overlap_s=common.overlap_s, parts=parts)
            self._once.keep(key, window)
        those.windows += 1
        those.overlap_s += window.overlap_s
        for one, part in zip(those.replicas, window.parts, strict=True):
            one.at_once.add(part)
        told = (_told(one, one.at_once, part) for one, part in zip(those.replicas, window.parts, strict=True))
        self._watch(TurnDone(number, of, AT_ONCE, tuple(told)))

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
            self.at_once = AtOnce(self.going)


def _key(what: str, those: Sequence[Replica], number: int) -> str:
    of = [part for one in those if one.facts for part in (one.device.uuid, one.facts.model)]
    return content_key(what, *of, number)


def _told(one: Replica, series: Series, window: Window) -> OwnWindow:
    timings = Timings.of(window, series.split, series.sensors)
    told = series.sensors.telemetry(timings.began_s)
    return OwnWindow(
        device=one.device,
        batch=one.batch,
        step_time_s=timings.step_time(timings.began_s),
        throughput=timings.throughput,
        memory_peak_bytes=timings.memory_peak_bytes[0],
        telemetry=told[0] if told else None,
    )
