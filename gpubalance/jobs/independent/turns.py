"""Measures models that train independently, in windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from gpubalance.errors import BadInput, GpubalanceError, OutOfMemory, TimeLimitPassed
from gpubalance.jobs.endings import lost_gpus_told
from gpubalance.jobs.events import Doing, TurnDone, Watch
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
from gpubalance.settings.device import Device
from gpubalance.settings.requests import IndependentRequest
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Ready
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

ALONE: Literal["alone"] = "alone"
AT_ONCE: Literal["at once"] = "at once"
T = TypeVar("T")
Work = Callable[["Replica", Worker], T]


@dataclass
class Replica:
    """A device that trains its own model.

    `number` is its place in the request, `facts` what its worker reported of the model, `error` why it dropped out.
    With `pipeline` its batches come from a user's input pipeline of its own. `series` has what was measured of it.
    """

    number: int
    device: Device
    model: str
    batch: int
    watch: Watch
    pipeline: bool = False
    facts: Ready | None = None
    error: GpubalanceError | None = None

    def __post_init__(self) -> None:
        self.series: dict[str, Series] = {}
        self.begin(ALONE)
        self.begin(AT_ONCE)

    def begin(self, name: str) -> None:
        """Begins what is measured under that name, and forgets what was."""
        split, devices = Shares((self.batch,)), (self.device,)
        self.series[name] = Series(split, name=name, devices=devices, watch=self.watch, pipeline=self.pipeline)

    def warm_up(self, worker: Worker) -> None:
        """Warms the model up and notes its facts. Raises what `Series.warm_up` does."""
        with lost_gpus_told([self.device]):
            self.facts = worker.facts
            self.series[ALONE].warm_up(worker, stamped=False)

    def measure_alone(self, worker: Worker, length: Length) -> Window:
        """Measures a window while no other device works. Raises what `Worker.measure` does, and for memory errors."""
        series = self.series[ALONE]
        with lost_gpus_told([self.device]):
            series.settle(worker, first=False)  # it has been idle for a while
            return series.plain_window(worker, length)

    def measure_at_once(self, worker: Worker, common: CommonWindow) -> None:
        """Measures until the window is over; ends it for all devices on any error. Raises as `measure_alone` does."""
        series = self.series[AT_ONCE]
        steps = self.series[ALONE].steps_per_timing(common.length.timing_s)
        try:
            with lost_gpus_told([self.device]), series.sensors.watching():
                for timing in series.measure(worker, steps_per_timing=steps, until=common.is_over):
                    common.take(self.number, timing, moves=series.sensors.move())
            series.sensors.check()
        except BaseException:
            common.leave()
            raise


class _DroppedOut(Exception):
    """A device failed, and the others go on without it."""


@dataclass(eq=False)
class Together:
    """A subject: one device "alone", or those that have not failed "at once", `overlap_s` seconds so far."""

    name: Literal["alone", "at once"]
    replicas: Sequence[Replica]
    windows: int = 0
    overlap_s: float = 0.0

    @property
    def series(self) -> list[Series]:
        """What is measured of each of its devices."""
        return [one.series[self.name] for one in self.replicas]

    @property
    def precision(self) -> float:
        """That of the device that is known least exactly."""
        return max(one.precision for one in self.series)

    def add(self, window: AllAtOnce) -> tuple[OwnWindow, ...]:
        """Adds a window, and returns what is told of it."""
        self.windows += 1
        self.overlap_s += window.overlap_s
        for series, part in zip(self.series, window.parts, strict=True):
            if series.windows < self.windows:
                series.add(part)
        return tuple(map(_told, self.series, window.parts))


class Turns:
    """Windows of each device alone and of all at once, in turns.

    The party has a worker for each device. A device that fails drops out, with its error, and the others go on: what
    all gave at once is then measured again without it.
    """

    def __init__(self, request: IndependentRequest, party: Party, once: Once, watch: Watch) -> None:
        each = enumerate(zip(request.devices, request.models, request.batches, strict=True))
        fed = request.settings.data is not None
        self.request = request
        self.replicas = tuple(Replica(number, *own, watch, fed) for number, own in each)
        self.once = once
        self._subjects = [Together(ALONE, [one]) for one in self.replicas]
        self.at_once = Together(AT_ONCE, self.replicas)
        self._length = Length.of_window(request.measuring)
        self._party = party
        self._watch = watch

    @property
    def going(self) -> list[Replica]:
        """The devices that have not failed."""
        return [one for one in self.replicas if one.error is None]

    @property
    def slowed(self) -> Slowed:
        """Each GPU that was throttled in the windows at once for a reason that passes, with NVML's reasons."""
        return [slowed for one in self.going for slowed in one.series[AT_ONCE].slowed]

    def subjects(self) -> list[Together]:
        """What is measured in turns: each device alone, and if there are several all at once."""
        alone = [one for one in self._subjects if one.replicas[0].error is None]
        return [*alone, *([self.at_once] if len(alone) > 1 else [])]

    def measure(self) -> None:
        """Measures until all is known or no device is left. Raises BadInput and TimeLimitPassed, no device's fault."""
        with suppress(_DroppedOut):
            self._each("warming up all devices at once", Replica.warm_up, self.going)
        in_turns(self.subjects, self._turn, self.request.measuring, lambda: self.slowed, self._watch)

    def _turn(self, subject: Together, number: int, of: int) -> None:
        """Measures a window of all of a subject's devices; it does not count if one of them fails."""
        uuids = [one.device.uuid for one in subject.replicas]
        models = [one.facts.model for one in subject.replicas if one.facts]
        key, which = content_key(subject.name, *uuids, *models, number), f"window {number} of {of}"
        measure = self._alone if subject.name == ALONE else self._all_at_once
        with suppress(_DroppedOut):
            window = self.once(key, AllAtOnce, lambda: measure(subject.replicas, which))
            self._watch(TurnDone(number, of, subject.name, subject.add(window)))

    def _alone(self, those: Sequence[Replica], which: str) -> AllAtOnce:
        doing = f"measuring {those[0].device.label} alone, {which}"
        parts = self._each(doing, lambda one, worker: one.measure_alone(worker, self._length), those)
        return AllAtOnce(parts=parts)

    def _all_at_once(self, those: Sequence[Replica], which: str) -> AllAtOnce:
        common = CommonWindow([one.number for one in those], self._length)
        doing = f"measuring all {len(those)} devices at once, {which}"
        self._each(doing, lambda one, worker: one.measure_at_once(worker, common), those)
        parts = tuple(one.series[AT_ONCE].taken(Window, common.counted[one.number]) for one in those)
        return AllAtOnce(overlap_s=common.overlap_s, parts=parts)

    def _each(self, doing: str, work: Work[T], those: Sequence[Replica]) -> tuple[T, ...]:
        """What `work` gives of these devices, at the same time. Those that fail drop out, which ends the window.

        Raises an error that is no device's fault.
        """
        self._watch(Doing(doing))
        among = [one.number for one in those]
        answers = self._party.each(lambda number, worker: work(self.replicas[number], worker), among)
        for number, error in sorted(self._party.failures.items()):
            if isinstance(error, BadInput | TimeLimitPassed):
                raise error
            one = self.replicas[number]
            one.error = error
            self._watch(Doing(f"{one.device.label} dropped out: {error.message}"))
            if isinstance(error, OutOfMemory) and not one.series[ALONE].timings:
                self.once.cannot_help()  # its memory will not hold its batch the next time either
        if self._party.failures:
            for one in self.replicas:
                one.begin(AT_ONCE)
            self.at_once = Together(AT_ONCE, self.going)
            raise _DroppedOut
        return tuple(answers.values())


def _told(series: Series, window: Window) -> OwnWindow:
    timings = Timings.of(window, series.split, series.sensors)
    return OwnWindow(
        device=series.devices[0],
        batch=series.split.global_batch,
        step_time_s=timings.step_time(timings.began_s),
        throughput=timings.throughput,
        memory_peak_bytes=timings.memory_peak_bytes[0],
        telemetry=series.sensors.telemetry(timings.began_s)[0],
    )
