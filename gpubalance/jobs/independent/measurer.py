"""Takes windows of models that train alone, and of several at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

from gpubalance.errors import BadInput, GpubalanceError, OutOfMemory, TimeLimitPassed
from gpubalance.jobs.endings import lost_gpus_told
from gpubalance.jobs.events import Doing, TurnDone, Watch
from gpubalance.jobs.independent.replica import OwnReplica
from gpubalance.jobs.independent.window import AllAtOnce, CommonWindow
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.look import Look, WarmUp, step_s_of, steps_per_timing
from gpubalance.jobs.measure.measurer import check_belongs
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.subject import Subject, Turn
from gpubalance.jobs.measure.warm_up import settle, warm_up
from gpubalance.jobs.measure.window import Window
from gpubalance.results.independent import OwnWindow
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

T = TypeVar("T")
Work = Callable[[OwnReplica, Worker], T]


class DroppedOut(Exception):
    """A device failed, and the others go on without it."""


class OwnModelsMeasurer:
    """Takes windows of each device alone and of all at once, with a worker for each device.

    Each window is in the `journal` before the next is taken. A device that fails drops out, with
    its error: what all gave at once then no longer counts. `overlap_s` is for how long all were
    measured at once.
    """

    def __init__(
        self, replicas: Sequence[OwnReplica], party: Party, journal: Journal, watch: Watch
    ) -> None:
        self.replicas = replicas
        self.watch = watch
        self.windows = defaultdict[Subject, list[Window]](list)
        self.warm_ups = defaultdict[Subject, WarmUp](WarmUp)
        self.overlap_s = 0.0
        self._party = party
        self._journal = journal
        self._sensors: dict[Subject, Sensors] = {}

    def sensors(self, subject: Subject) -> Sensors:
        """What reads the GPU during the subject's windows."""
        return self._sensors.setdefault(subject, Sensors(subject.devices))

    @property
    def going(self) -> list[OwnReplica]:
        """The devices that have not failed."""
        return [replica for replica in self.replicas if replica.error is None]

    def warm_up(self) -> None:
        """Warms all devices up at once. Raises DroppedOut if one fails."""
        self._each("warming up all devices at once", self._warmed_up, self.replicas)

    def turn(self, turn: Turn, rule: StoppingRule, number: int, of: int, doing: str) -> None:
        """Adds a window of each of a turn's devices. Raises DroppedOut if one of them fails."""
        name: Literal["alone", "at once"] = "alone" if len(turn) == 1 else "at once"
        devices = [subject.devices[0] for subject in turn]
        replicas = [replica for replica in self.replicas if replica.device in devices]
        uuids = [replica.device.uuid for replica in replicas]
        models = [replica.facts.model for replica in replicas if replica.facts]
        key = content_key(name, *uuids, *models, number)
        taken = self._journal.load(key, AllAtOnce)
        if taken is None:
            if name == "alone":
                (window,) = self._each(doing, partial(self._taken_alone, rule), replicas)
                taken = AllAtOnce(parts=(window,))
            else:
                taken = self._taken_at_once(replicas, rule, doing)
            self._journal.keep(key, taken)
        self.overlap_s += taken.overlap_s
        for subject, window in zip(turn, taken.parts, strict=True):
            check_belongs(window, subject)
            self.windows[subject].append(window)
        told = tuple(self._last(subject) for subject in turn)
        self.watch(TurnDone(number, of, name, told))

    def _last(self, subject: Subject) -> OwnWindow:
        """What a subject's last window gave."""
        last = self.windows[subject][-1:]
        origin_s = figures.began_s(last)
        step_time = figures.step_time(last, origin_s)
        batch = subject.split.global_batch
        return OwnWindow(
            device=subject.devices[0],
            batch=batch,
            step_time_s=step_time,
            throughput=figures.throughput_of(batch, step_time.samples),
            memory_peak_bytes=figures.peaks(last)[0],
            telemetry=self.sensors(subject).telemetry(origin_s)[0],
        )

    def _look(self, subject: Subject, worker: Worker) -> Look:
        before = self.warm_ups[subject]
        return Look(worker, subject, self.sensors(subject), self.watch, before)

    def _warmed_up(self, replica: OwnReplica, worker: Worker) -> None:
        replica.facts = worker.facts
        look = self._look(replica.alone, worker)
        self.warm_ups[replica.alone] = warm_up(look, self.warm_ups[replica.alone])

    def _taken_alone(self, rule: StoppingRule, replica: OwnReplica, worker: Worker) -> Window:
        look = self._look(replica.alone, worker)
        step_s = step_s_of(settle(look, first=False)[-1])  # it has been idle for a while
        before = self.warm_ups[replica.alone]
        self.warm_ups[replica.alone] = replace(before, step_s=step_s, peaks=look.peaks)
        try:
            return look.window(rule, step_s)
        except BaseException:
            if look.timings:
                self.windows[replica.alone].append(look.taken())
            raise

    def _taken_at_once(
        self, replicas: Sequence[OwnReplica], rule: StoppingRule, doing: str
    ) -> AllAtOnce:
        common = CommonWindow([replica.number for replica in replicas], rule)

        def measure(replica: OwnReplica, worker: Worker) -> Look:
            """Measures until the window is over; ends it for all devices on any error."""
            look = self._look(replica.at_once, worker)
            steps = steps_per_timing(rule.timing_s, self.warm_ups[replica.alone].step_s)
            try:
                with look.sensors.watching():
                    for timing in look.measure(steps_per_timing=steps, until=common.is_over):
                        common.take(replica.number, timing, moves=look.sensors.move())
            except BaseException:
                common.leave()
                raise
            return look

        looks = self._each(doing, measure, replicas)
        parts = []
        for replica, look in zip(replicas, looks, strict=True):
            parts.append(look.taken(common.counted[replica.number]))
        return AllAtOnce(overlap_s=common.overlap_s, parts=tuple(parts))

    def _each(self, doing: str, work: Work[T], replicas: Sequence[OwnReplica]) -> list[T]:
        """What `work` gives of these devices, at the same time. Those that fail drop out.

        Raises DroppedOut then, and an error that is no device's fault.
        """

        def attempt(number: int, worker: Worker) -> T:
            with lost_gpus_told(self._party.groups[number]):
                return work(self.replicas[number], worker)

        self.watch(Doing(doing))
        answers = self._party.each(attempt, [replica.number for replica in replicas])
        for number, error in sorted(self._party.failures.items()):
            if isinstance(error, BadInput | TimeLimitPassed):
                raise error
            self._drop(self.replicas[number], error)
        if self._party.failures:
            self._forget_at_once()
            raise DroppedOut
        return list(answers.values())

    def _drop(self, replica: OwnReplica, error: GpubalanceError) -> None:
        replica.error = error
        if isinstance(error, OutOfMemory):
            replica.error = error.fault or error
            # Its memory will not hold its batch the next time either.
            if not self.windows[replica.alone]:
                self._journal.helps = False
        self.watch(Doing(f"{replica.device.label} dropped out: {error.message}"))

    def _forget_at_once(self) -> None:
        """Forgets what all gave at once."""
        self.overlap_s = 0.0
        for replica in self.replicas:
            self.windows.pop(replica.at_once, None)
            self._sensors.pop(replica.at_once, None)
