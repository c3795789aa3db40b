"""Has workers measure workloads, keeps what they give, and tells whoever watches."""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from gpubalance.devices.selection import check_model
from gpubalance.errors import BadInput
from gpubalance.jobs.endings import raise_if_refused, raising_gpu_lost
from gpubalance.jobs.events import Doing, Starting, Watch
from gpubalance.jobs.journal import Journal, content_key
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.window import (
    InterleavedRound,
    MeasuredTogether,
    Sensors,
    Window,
    Workload,
)
from gpubalance.jobs.measure.workload_runner import (
    WarmUp,
    WorkloadRunner,
    step_s_of,
    steps_per_timing,
    train_until_ready,
    train_until_settled,
)
from gpubalance.jobs.saved import KeptRules
from gpubalance.results.common import Model
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.requests import BalanceRequest, LayersRequest, RunRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Build, Ready
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup


def group_for(
    request: RunRequest | BalanceRequest | LayersRequest,
    watch: Watch,
    limit: TimeLimit,
    *devices: Device,
    purpose: str = "run",
    journal: Journal | None = None,
) -> WorkerGroup:
    """A group of one worker for all of the request's devices, or for these.

    The `journal` keeps what it finds of models.
    """
    measuring = request.measuring
    return WorkerGroup(
        devices or request.devices,
        build=build_for(request),
        purpose=purpose,
        deadline_s=measuring.deadline_s,
        limit=limit,
        report=lambda text: watch(Starting(text)),
        kept_rules=KeptRules(journal) if journal else None,
    )


def build_for(request: RunRequest | BalanceRequest | LayersRequest) -> Build:
    """What the workers of a request build."""
    cuts = request.cuts if isinstance(request, LayersRequest) else None
    return Build(
        settings=request.settings,
        joint=request.joint,
        seed=request.measuring.seed,
        cuts=cuts,
    )


def check_facts(facts: Ready, request: RunRequest, planned: Model | None) -> None:
    """Checks what the workers of a run say of its model.

    Raises PlanMismatch for a model that was not planned, BadInput if no split trains it.
    """
    name = shlex.quote(request.settings.model)
    another = f"make a plan for this model: gpubalance balance --model {name}"
    check_model(planned, facts.model, remedy=f"{another}; --force runs the plan anyway")
    split = request.split
    if len(split.used) > 1 or split.accumulates:
        raise_if_refused(facts)


T = TypeVar("T")


class Measurer:
    """Takes windows of workloads with a worker group's workers. A probe has no measurer.

    What `take` measures is in the `journal` before anything else is measured, and what an
    interrupted command left there is not measured again. `windows` has those of each workload so
    far, `resumed` how many of each came from the journal. `took_s` is how long the last window of
    each took, with all that came before its first step. `overlap_s` is for how long
    several workloads were measured at once. `facts` has what workers said of their models, by the
    number of their group. `current` is what is measured now, or was when an error came.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        journal: Journal,
        watch: Watch,
        *key: str | int,
        workers_rest: bool = False,
    ) -> None:
        """The `key` tells its windows in the journal apart from those of others.

        If `workers_rest` between windows, each settles before it is measured.
        """
        self.worker_group = worker_group
        self.watch = watch
        self.windows = defaultdict[Workload, list[Window]](list)
        self.resumed = Counter[MeasuredTogether]()
        self.took_s: dict[MeasuredTogether, float] = {}
        self.overlap_s = 0.0
        self.facts: dict[int, Ready] = {}
        self.current: MeasuredTogether = ()
        self.journal = journal
        self._key = key
        self._workers_rest = workers_rest
        self._warm_ups: dict[Workload, WarmUp] = {}
        self._sensors: dict[Workload, Sensors] = {}
        self._doing = ""  # what was told last: equal texts are told once

    def window_count(self, workloads: MeasuredTogether) -> int:
        """How many windows each of these workloads has: all have the same number."""
        return len(self.windows[workloads[0]])

    def sensors(self, workload: Workload) -> Sensors:
        """What reads the GPUs during the workload's windows."""
        return self._sensors.setdefault(workload, Sensors(workload.devices))

    def telemetry_ended(self) -> Iterator[tuple[Device, str]]:
        """Each GPU whose readings have ended in any workload's windows, and as what."""
        for sensors in self._sensors.values():
            yield from sensors.ended

    def warm_up_of(self, workload: Workload) -> WarmUp:
        """How the workload was warmed up so far, under any name."""
        return self._warm_ups.get(workload.unnamed, WarmUp())

    def forget(self, workloads: Sequence[Workload]) -> None:
        """Forgets what these gave together, as one of them failed."""
        # A measurer measures at most one set of workloads at once: the overlap is that of these.
        self.overlap_s = 0.0
        for workload in workloads:
            self.windows.pop(workload, None)
            self._sensors.pop(workload, None)

    def warm_up(self, workload: Workload) -> None:
        """Trains with it until it is ready to be measured.

        Raises OutOfMemory, and BadInput for a loss that is not a number.
        """
        with self._worker_of(workload) as worker:
            self._warmed_up_runner(workload, worker)

    def warm_up_at_once(self, workloads: Sequence[Workload]) -> None:
        """Trains with all at the same time until they are ready. Raises as `warm_up` does."""
        self._at_once(workloads, self._warmed_up_runner)

    def measure(self, workload: Workload, rule: StoppingRule) -> Window:
        """A window that is measured now, and does not go into the journal."""
        window = self._measure_one(workload, rule)
        self.windows[workload].append(window)
        return window

    def take(
        self,
        workloads: MeasuredTogether,
        rule: StoppingRule,
        number: int = 1,
        doing: str = "",
    ) -> None:
        """Adds a window of each of these workloads, which are trained at the same time.

        `number` counts their windows from 1. If the journal has that one it is taken; else it is
        measured now, and `doing` is told. Unless a workload is a cut model, its group must have
        been warmed up before, as the key in the journal has its worker's facts. Raises OutOfMemory
        if a device does not hold its part.
        """
        key = self._key_of(workloads, number)
        taken = self._from_journal(key, workloads)
        if taken is None:
            if doing != self._doing:
                self._doing = doing
                self.watch(Doing(doing))
            began_s = time.monotonic()
            taken = self._measure_now(workloads, rule)
            took_s = time.monotonic() - began_s
            taken = taken.model_copy(update={"took_s": took_s})
            self.journal.keep(key, taken)
        self.took_s[workloads] = taken.took_s
        self.overlap_s += taken.overlap_s
        for workload, window in zip(workloads, taken.windows, strict=True):
            self.windows[workload].append(window)

    def _from_journal(
        self, key: str, workloads: MeasuredTogether
    ) -> InterleavedRound | None:
        """What an interrupted command has kept. Raises BadInput for windows of other workloads."""
        taken = self.journal.load(key, InterleavedRound)
        if taken is None:
            return None
        self.resumed[workloads] += 1
        is_complete = len(taken.windows) == len(workloads)
        if is_complete and all(map(belongs_to, taken.windows, workloads)):
            return taken
        raise BadInput(
            "the record of this command that --resume continues from is damaged",
            remedy="run the command again without --resume",
        )

    def _key_of(self, workloads: MeasuredTogether, number: int) -> str:
        key = ["window", *self._key, number]
        for workload in workloads:
            key += [workload.name, str(workload.split)]
            key += [device.uuid for device in workload.devices]
            # A cut model's measurer has no other workload.
            if workload.cut is None:
                facts = self.facts[workload.group]
                # A worker that is started again may choose another size of packs.
                key += [facts.model.model_dump_json(), str(facts.pack_bytes)]
        return content_key(*key)

    @contextmanager
    def _worker_of(self, workload: Workload) -> Iterator[Worker]:
        """The workload's worker. Raises its failure."""
        self.current = (workload,)
        with (
            self.worker_group.worker(workload.group) as worker,
            raising_gpu_lost(workload.devices),
        ):
            yield worker

    def _at_once(
        self, workloads: Sequence[Workload], work: Callable[[Workload, Worker], T]
    ) -> list[T]:
        """What `work` gives of each workload with its worker, all at the same time.

        Raises the failure of the lowest group; the worker group's `failures` has all.
        """
        self.current = tuple(workloads)
        by_group = {workload.group: workload for workload in workloads}

        def attempt(group: int, worker: Worker) -> T:
            workload = by_group[group]
            with raising_gpu_lost(workload.devices):
                return work(workload, worker)

        answers = self.worker_group.each(attempt, list(by_group))
        failures = self.worker_group.failures
        if failures:
            raise failures[min(failures)]
        return [answers[workload.group] for workload in workloads]

    def _warmed_up_runner(self, workload: Workload, worker: Worker) -> WorkloadRunner:
        """The workload's runner, once this worker is warmed up with it.

        That takes no time if it was before.
        """
        self.facts[workload.group] = worker.facts
        runner = self._runner(workload, worker)
        before = self.warm_up_of(workload)
        self._warm_ups[workload.unnamed] = train_until_ready(runner, before)
        return runner

    def _runner(self, workload: Workload, worker: Worker) -> WorkloadRunner:
        watch = self.watch if workload.shown else None
        return WorkloadRunner(
            worker, workload, self.sensors(workload), watch, self.warm_up_of(workload)
        )

    def _measure_now(
        self, workloads: MeasuredTogether, rule: StoppingRule
    ) -> InterleavedRound:
        if len(workloads) > 1:
            return self._measure_at_once(workloads, rule)
        (workload,) = workloads
        return InterleavedRound(windows=(self._measure_one(workload, rule),))

    def _measure_one(self, workload: Workload, rule: StoppingRule) -> Window:
        with self._worker_of(workload) as worker:
            # On a real device a split that did not fit has ended the worker: this one may be new.
            runner = self._warmed_up_runner(workload, worker)
            if self._workers_rest:
                # The warm-up has refused a bad loss already.
                *_, last_step = train_until_settled(runner, refuses_bad_loss=False)
                self._warm_ups[workload.unnamed] = replace(
                    self.warm_up_of(workload),
                    step_s=step_s_of(last_step),
                    peaks=runner.peaks,
                )
            try:
                return runner.window(rule, self.warm_up_of(workload).step_s)
            except BaseException:
                # What there is of the window counts, in a partial result.
                if runner.timings:
                    self.windows[workload].append(runner.window_of(runner.timings))
                raise

    def _measure_at_once(
        self, workloads: MeasuredTogether, rule: StoppingRule
    ) -> InterleavedRound:
        common = CommonWindow([workload.group for workload in workloads], rule)

        def measure_until_over(workload: Workload, worker: Worker) -> WorkloadRunner:
            """Measures until the common window is over; ends it on any error."""
            # It is warmed up already: a device whose worker fails is not measured again.
            runner = self._runner(workload, worker)
            steps = steps_per_timing(rule.timing_s, self.warm_up_of(workload).step_s)
            try:
                with runner.sensors.watching():
                    for timing in runner.train(
                        steps_per_timing=steps, until=common.is_over
                    ):
                        common.add(
                            workload.group,
                            timing,
                            gpu_is_changing=runner.sensors.gpu_is_changing(),
                        )
            except BaseException:
                common.end()
                raise
            return runner

        runners = self._at_once(workloads, measure_until_over)
        windows = []
        for workload, runner in zip(workloads, runners, strict=True):
            windows.append(runner.window_of(common.counted[workload.group]))
        return InterleavedRound(overlap_s=common.overlap_s, windows=tuple(windows))


def belongs_to(window: Window, workload: Workload) -> bool:
    """Whether it may be the workload's: one of a damaged journal may not."""
    if workload.wants_stamps and not window.stamped:
        return False
    # Only tests and benches have workloads without devices.
    replicas = len(workload.devices or workload.split.batches)
    return len(window.throttled) == replicas


class CommonWindow:
    """Begins when each worker has given its first timing, ends when each has given enough.

    Only this process's clock says when a timing arrives. A timing counts if the one before it
    arrived after the common begin, so that it began after that too, and if it arrives before the
    common end: then every device trained all the while. Each worker's thread shares the window.
    """

    def __init__(self, groups: Sequence[int], rule: StoppingRule) -> None:
        """The window ends when the rule is content with what counts of each group's worker."""
        self.counted: dict[int, list[Timing]] = {group: [] for group in groups}
        self.overlap_s = 0.0
        self._rule = rule
        self._lock = threading.Lock()
        self._came_s: dict[int, float] = {}
        self._gpu_is_changing: dict[int, bool] = {}
        self._began_s: float | None = None
        self._is_over = False

    def add(self, group: int, timing: Timing, *, gpu_is_changing: bool = False) -> None:
        """Adds a worker's timing that has just arrived, and what its sensors say of its GPU."""
        with self._lock:
            now_s = time.monotonic()
            before_s = self._came_s.get(group)
            self._came_s[group] = now_s
            self._gpu_is_changing[group] = gpu_is_changing
            if self._is_over:
                return
            if self._began_s is None:
                self._began_s = (
                    now_s if len(self._came_s) == len(self.counted) else None
                )
                return
            if before_s is not None and before_s >= self._began_s:
                self.counted[group].append(timing)
            if self._have_enough():
                self._is_over = True
                self.overlap_s = now_s - self._began_s

    def _have_enough(self) -> bool:
        """Whether what counts of each worker is enough."""
        for group, timings in self.counted.items():
            if not self._rule.is_reached(
                timings, gpu_is_changing=self._gpu_is_changing[group]
            ):
                return False
        return True

    def is_over(self) -> bool:
        """Whether the window has ended: no timing that arrives from now on counts."""
        return self._is_over

    def end(self) -> None:
        """Ends the window after a worker has failed; what the others measured is worthless."""
        with self._lock:
            self._is_over = True
