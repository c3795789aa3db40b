"""Warms subjects up, has workers measure them, keeps what they give, and tells whoever watches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpubalance.errors import BadInput
from gpubalance.jobs.endings import lost_gpus_told
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.measure.at_once import CommonWindow
from gpubalance.jobs.measure.look import Look, WarmUp, step_s_of, steps_per_timing
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.subject import Subject, Turn
from gpubalance.jobs.measure.warm_up import settle, warm_up
from gpubalance.jobs.measure.window import TakenTurn, Window
from gpubalance.workers.messages import Ready
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

T = TypeVar("T")


class Measurer:
    """Takes windows of subjects with the workers of a party: all but those of a probe.

    What `take` gives is in the `journal` before the next is taken, and what an interrupted command
    left there is not measured again; what `measure` gives is for its caller to keep. `windows` has
    those of each subject so far, and `resumed` how many came from the journal; `overlap_s` is for
    how long several were measured at once. `facts` are what each group's worker said of its model.
    `current` is what is measured now, or was when an error came.
    """

    def __init__(
        self,
        party: Party,
        journal: Journal,
        watch: Watch,
        *key: str | int,
        workers_rest: bool = False,
    ) -> None:
        """The `key` tells its windows in the journal apart from those of others.

        If `workers_rest` between their turns, each settles before it is measured.
        """
        self.party = party
        self.watch = watch
        self.windows = defaultdict[Subject, list[Window]](list)
        self.resumed = Counter[Turn]()
        self.overlap_s = 0.0
        self.facts: dict[int, Ready] = {}
        self.current: Turn = ()
        self.journal = journal
        self._key = key
        self._workers_rest = workers_rest
        self._warm_ups: dict[Subject, WarmUp] = {}
        self._sensors: dict[Subject, Sensors] = {}
        self._doing = ""  # what was told last: equal texts are told once

    def windows_of(self, turn: Turn) -> int:
        """How many windows there are of each subject of a turn: of all of them as many."""
        return len(self.windows[turn[0]])

    def sensors(self, subject: Subject) -> Sensors:
        """What reads the GPUs during the subject's windows."""
        return self._sensors.setdefault(subject, Sensors(subject.devices))

    def warm_up_of(self, subject: Subject) -> WarmUp:
        """How it was warmed up so far, under whatever name."""
        return self._warm_ups.get(subject.unnamed, WarmUp())

    def forget(self, subjects: Sequence[Subject]) -> None:
        """Forgets what these gave together, as one of them failed."""
        self.overlap_s = 0.0  # only one turn has an overlap
        for subject in subjects:
            self.windows.pop(subject, None)
            self._sensors.pop(subject, None)

    def warm_up(self, *subjects: Subject) -> None:
        """Trains with each until it is ready to be measured. Raises as `warm_up` does."""
        self._ask(subjects, self._look_after_warm_up)

    def measure(self, subject: Subject, rule: StoppingRule) -> Window:
        """A window that is measured now, and does not go into the journal."""
        (window,) = self._ask((subject,), partial(self._measured, rule))
        self.windows[subject].append(window)
        return window

    def take(
        self, turn: Turn, rule: StoppingRule, number: int = 1, doing: str = ""
    ) -> None:
        """Adds a window of each of the turn's subjects, which are trained at the same time.

        They are those of that number in the journal, else they are measured now, and `doing` is
        told. What is not a cut model must have been warmed up: its key in the journal has facts of
        its worker. Raises OutOfMemory if a device does not hold its part.
        """
        key = self._key_of(turn, number)
        taken = self._from_journal(key, turn)
        if taken is None:
            if doing != self._doing:
                self._doing = doing
                self.watch(Doing(doing))
            taken = self._taken(turn, rule)
            self.journal.keep(key, taken)
        self.overlap_s += taken.overlap_s
        for subject, window in zip(turn, taken.windows, strict=True):
            self.windows[subject].append(window)

    def _from_journal(self, key: str, turn: Turn) -> TakenTurn | None:
        """What an interrupted command has kept. Raises BadInput for windows of other subjects."""
        taken = self.journal.load(key, TakenTurn)
        if taken is None:
            return None
        self.resumed[turn] += 1
        is_complete = len(taken.windows) == len(turn)
        if is_complete and all(map(belongs_to, taken.windows, turn)):
            return taken
        raise BadInput(
            "the journal of this command is damaged",
            remedy="run it again without --resume",
        )

    def _key_of(self, turn: Turn, number: int) -> str:
        key = ["window", *self._key, number]
        for subject in turn:
            key += [subject.name, str(subject.split)]
            key += [device.uuid for device in subject.devices]
            if subject.cut is None:
                # It is a split. Workers that start anew may sum gradients in other packs.
                facts = self.facts[subject.group]
                key += [facts.model.model_dump_json(), str(facts.pack_bytes)]
        return content_key(*key)

    def _ask(
        self, subjects: Sequence[Subject], work: Callable[[Subject, Worker], T]
    ) -> list[T]:
        """What `work` gives of each subject with its worker, all at the same time.

        Raises the first failure; the party's `failures` has all.
        """
        self.current = tuple(subjects)
        by_group = {subject.group: subject for subject in subjects}

        def attempt(group: int, worker: Worker) -> T:
            subject = by_group[group]
            with lost_gpus_told(subject.devices):
                return work(subject, worker)

        answers = self.party.each(attempt, list(by_group))
        failures = self.party.failures
        if failures:
            raise failures[min(failures)]
        return [answers[subject.group] for subject in subjects]

    def _look_after_warm_up(self, subject: Subject, worker: Worker) -> Look:
        """The worker's look at the subject, once that is warmed up: at once if it was before."""
        self.facts[subject.group] = worker.facts
        look = self._look(subject, worker)
        self._warm_ups[subject.unnamed] = warm_up(look, self.warm_up_of(subject))
        return look

    def _look(self, subject: Subject, worker: Worker) -> Look:
        watch = self.watch if subject.shown else None
        return Look(
            worker, subject, self.sensors(subject), watch, self.warm_up_of(subject)
        )

    def _taken(self, turn: Turn, rule: StoppingRule) -> TakenTurn:
        if len(turn) > 1:
            return self._taken_at_once(turn, rule)
        (window,) = self._ask(turn, partial(self._measured, rule))
        return TakenTurn(windows=(window,))

    def _measured(self, rule: StoppingRule, subject: Subject, worker: Worker) -> Window:
        # On a real device a split that did not fit has ended the worker: this one may be new.
        look = self._look_after_warm_up(subject, worker)
        if self._workers_rest:
            # Its loss was looked at when it was warmed up.
            step_s = step_s_of(settle(look, refuses_bad_loss=False)[-1])
            warmed_up = self.warm_up_of(subject)
            self._warm_ups[subject.unnamed] = replace(
                warmed_up, step_s=step_s, peaks=look.peaks
            )
        try:
            return look.window(rule, self.warm_up_of(subject).step_s)
        except BaseException:
            # What there is of the window counts, in a partial result.
            if look.timings:
                self.windows[subject].append(look.taken())
            raise

    def _taken_at_once(self, turn: Turn, rule: StoppingRule) -> TakenTurn:
        common = CommonWindow([subject.group for subject in turn], rule)

        def measure(subject: Subject, worker: Worker) -> Look:
            """Measures until the window is over; ends it for all subjects on any error."""
            # This worker is warmed up: one that failed has dropped out with its device.
            look = self._look(subject, worker)
            steps = steps_per_timing(rule.timing_s, self.warm_up_of(subject).step_s)
            try:
                with look.sensors.watching():
                    for timing in look.measure(
                        steps_per_timing=steps, until=common.is_over
                    ):
                        common.take(subject.group, timing, moves=look.sensors.move())
            except BaseException:
                common.leave()
                raise
            return look

        looks = self._ask(turn, measure)
        windows = []
        for subject, look in zip(turn, looks, strict=True):
            windows.append(look.taken(common.counted[subject.group]))
        return TakenTurn(overlap_s=common.overlap_s, windows=tuple(windows))


def belongs_to(window: Window, subject: Subject) -> bool:
    """Whether it may be the subject's: one of a damaged journal may not."""
    # Only tests and benches have subjects without devices.
    replicas = len(subject.devices or subject.split.batches)
    return len(window.throttled) == replicas and (
        bool(window.stamped) or not subject.stamped
    )
