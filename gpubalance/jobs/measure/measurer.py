"""The one place that warms up, asks a worker, keeps what it gave, and tells whoever watches."""

from __future__ import annotations

from collections import Counter, defaultdict

from gpubalance.errors import BadInput
from gpubalance.jobs.events import Doing, PipeWindowDone, Watch, WindowDone
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.measure.figures import step_times_s, throughput_of, usual_s
from gpubalance.jobs.measure.look import Look, WarmUp
from gpubalance.jobs.measure.measurement import measurement
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.subject import Subject, Turn
from gpubalance.jobs.measure.warm_up import warm_up
from gpubalance.jobs.measure.window import Window
from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker


class Measurer:
    """Takes windows of subjects with the worker of a party; nothing else asks it to train for them.

    Each window is in the `journal` before the next is taken; one that an interrupted command left
    there is not measured again. `windows` has those of each subject so far, `warm_ups` how it was
    warmed up and `sensors` what its GPUs told meanwhile; `resumed` is how many windows were left.
    `current` is the subject that is measured now, or was when an error came.
    """

    def __init__(self, party: Party, journal: Journal, watch: Watch, *key: str | int) -> None:
        """The `key` tells its windows in the journal apart from those of others."""
        self.party = party
        self.journal = journal
        self.watch = watch
        self.windows = defaultdict[Subject, list[Window]](list)
        self.warm_ups = defaultdict[Subject, WarmUp](WarmUp)
        self.resumed = Counter[Subject]()
        self.current: Subject | None = None
        self._key = key
        self._sensors: dict[Subject, Sensors] = {}
        self._doing = ""

    def sensors(self, subject: Subject) -> Sensors:
        """What reads the GPUs during the subject's windows."""
        return self._sensors.setdefault(subject, Sensors(subject.devices))

    def warm_up(self, subject: Subject) -> None:
        """Trains with the subject until it is ready to be measured. Raises as `warm_up` does."""
        self.current = subject
        self.party.ask(lambda worker: self._warmed_up(worker, subject))

    def window(
        self, subject: Subject, rule: StoppingRule, number: int = 1, doing: str = ""
    ) -> Window:
        """The subject's window of that number: the one in the journal, else it is measured now.

        `doing` is told when it is measured. Raises OutOfMemory if a device does not hold its part.
        """
        self.current = subject
        key = self._key_of(subject, number)
        window = self.journal.load(key, Window)
        if window is not None:
            check_belongs(window, subject)
            self.resumed[subject] += 1
            self.windows[subject].append(window)
            return window
        if doing != self._doing:
            self._doing = doing
            self.watch(Doing(doing))
        window = self.measure(subject, rule)
        self.journal.keep(key, window)
        return window

    def turn(self, turn: Turn, rule: StoppingRule, number: int, of: int, doing: str) -> None:
        """The subject's window of that number of so many, of which is told."""
        (subject,) = turn
        self.window(subject, rule, number, doing)
        windows = self.windows[subject]
        if subject.cut is not None:
            rate = throughput_of(subject.split.global_batch, step_times_s(windows))
            self.watch(PipeWindowDone(number, of, rate.median, usual_s(windows)))
            return
        told = measurement(subject.split, windows[-1:], self.sensors(subject))
        self.watch(WindowDone(number, of, subject.name, subject.devices, told))

    def measure(self, subject: Subject, rule: StoppingRule) -> Window:
        """A window that is measured now. If an error cuts it short, what there is counts."""
        self.current = subject
        return self.party.ask(lambda worker: self._measured(worker, subject, rule))

    def _key_of(self, subject: Subject, number: int) -> str:
        uuids = [device.uuid for device in subject.devices]
        key = ["window", *self._key, *uuids, subject.name, str(subject.split), number]
        if subject.cut is not None:
            return content_key(*key)
        # Workers that start anew may sum gradients in other packs.
        facts = self.party.facts
        return content_key(*key, facts.model, facts.pack_bytes)

    def _warmed_up(self, worker: Worker, subject: Subject) -> Look:
        """A look of the worker at the subject, which is warmed up."""
        watch = self.watch if subject.shown else None
        before = self.warm_ups[subject]
        look = Look(worker, subject, self.sensors(subject), watch, before)
        self.warm_ups[subject] = warm_up(look, before)
        return look

    def _measured(self, worker: Worker, subject: Subject, rule: StoppingRule) -> Window:
        # On a real device a split that did not fit has ended the worker: this one may be new.
        look = self._warmed_up(worker, subject)
        try:
            window = look.window(rule, self.warm_ups[subject].step_s)
        except BaseException:
            if look.timings:
                self.windows[subject].append(look.taken())
            raise
        self.windows[subject].append(window)
        return window


def check_belongs(window: Window, subject: Subject) -> None:
    """Raises BadInput for a window of another subject, from a damaged journal."""
    replicas = len(subject.devices or subject.split.batches)
    if len(window.throttled) != replicas or (subject.stamped and not window.stamped):
        raise BadInput(
            "the journal of this command is damaged", remedy="run it again without --resume"
        )
