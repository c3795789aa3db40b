"""Has workers measure workloads, keeps what they give, and reports it to whoever watches."""

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
    MeasuredTogether,
    Sensors,
    SimultaneousWindows,
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

    The `journal` keeps the combine rules that the workers find for a model.
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
    """Checks the model that the workers of a `run` have built.

    `planned` is the model of its plan, None without a plan. Raises PlanMismatch if it is another
    one, BadInput if no split trains it.
    """
    name = shlex.quote(request.settings.model)
    another = f"make a plan for this model: gpubalance balance --model {name}"
    check_model(planned, facts.model, remedy=f"{another}; --force runs the plan anyway")
    split = request.split
    # A batch in one piece on one device is no split.
    if len(split.used) > 1 or split.accumulates:
        raise_if_refused(facts)


T = TypeVar("T")


class Measurer:
    """Takes windows of workloads with a worker group's workers. A probe has no measurer.

    What `measure_kept` measures is in the `journal` before anything else is measured, and what an
    interrupted command left there is not measured again.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        journal: Journal,
        watch: Watch,
        *,
        key: str | int | None = None,
        workers_rest: bool = False,
    ) -> None:
        """Measures nothing yet.

        key           tells its windows in the journal from those of the command's other measurers
        workers_rest  workers are idle while others are measured: each workload that is measured by
                      itself settles before its window
        """
        self.worker_group = worker_group
        self.watch = watch
        # Those of each workload so far
        self.windows = defaultdict[Workload, list[Window]](list)
        # How many windows of each set of workloads came from the journal
        self.resumed = Counter[MeasuredTogether]()
        # How long the last window of each set took, with all that came before its first step
        self.took_s: dict[MeasuredTogether, float] = {}
        # For how long several workloads were measured at once
        self.overlap_s = 0.0
        # What workers reported of their models, by the number of their group
        self.facts: dict[int, Ready] = {}
        # What is measured now, or was when an error came
        self.current: MeasuredTogether = ()
        self.journal = journal
        self._key = () if key is None else (key,)
        self._workers_rest = workers_rest
        self._warm_ups: dict[Workload, WarmUp] = {}  # by workload without its name
        self._sensors: dict[Workload, Sensors] = {}
        # The text that was reported last, "" before any: it is not repeated.
        self._doing = ""

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
        """How the workload was warmed up so far, under this or another name; empty if not yet."""
        return self._warm_ups.get(workload.unnamed, WarmUp())

    def forget(self, workloads: Sequence[Workload]) -> None:
        """Forgets the windows and readings of these workloads; `resumed` and `took_s` stay.

        `independent` does so when a device has dropped out, with what all gave at once. It and
        `run` do so when a first window shows that this machine is too slow for a profile.
        """
        # At most one set of a measurer has several workloads: the overlap is theirs.
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

    def measure_unkept(self, workload: Workload, rule: StoppingRule) -> Window:
        """A window that is measured now, and does not go into the journal."""
        window = self._measure_one(workload, rule)
        self.windows[workload].append(window)
        return window

    def measure_kept(
        self,
        workloads: MeasuredTogether,
        rule: StoppingRule,
        number: int = 1,
        doing: str = "",
    ) -> None:
        """Adds a window of each of these workloads, which are trained at the same time.

        `number` counts their windows from 1. If the journal has that one it is taken; else it is
        measured now, and `doing` is reported unless it was reported last. Warm each group up first:
        the journal's key has its worker's facts, but for a cut model. Raises OutOfMemory if a
        device does not hold its part.
        """
        key = self._key_of(workloads, number)
        taken = self._from_journal(key, workloads)
        if taken is None:
            if doing != self._doing:
                self._doing = doing
                self.watch(Doing(doing))
            began_s = time.monotonic()
            taken = self._measure_one_or_several(workloads, rule)
            took_s = time.monotonic() - began_s
            taken = taken.model_copy(update={"took_s": took_s})
            self.journal.keep(key, taken)
        self.took_s[workloads] = taken.took_s
        self.overlap_s += taken.overlap_s
        for workload, window in zip(workloads, taken.windows, strict=True):
            self.windows[workload].append(window)

    def _from_journal(
        self, key: str, workloads: MeasuredTogether
    ) -> SimultaneousWindows | None:
        """What an interrupted command has kept. Raises BadInput for windows of other workloads."""
        taken = self.journal.load(key, SimultaneousWindows)
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
        """The worker of the workload, which is `current` from now on. Raises its failure."""
        self.current = (workload,)
        with (
            self.worker_group.worker(workload.group) as worker,
            raising_gpu_lost(workload.devices),
        ):
            yield worker

    def _at_once(
        self, workloads: Sequence[Workload], work: Callable[[Workload, Worker], T]
    ) -> list[T]:
        """What `work` returns for each workload and its worker, in order; all run at the same time.

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
        """Warms the worker up with the workload, unless it is already; returns the runner."""
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

    def _measure_one_or_several(
        self, workloads: MeasuredTogether, rule: StoppingRule
    ) -> SimultaneousWindows:
        if len(workloads) > 1:
            return self._measure_at_once(workloads, rule)
        (workload,) = workloads
        return SimultaneousWindows(windows=(self._measure_one(workload, rule),))

    def _measure_one(self, workload: Workload, rule: StoppingRule) -> Window:
        with self._worker_of(workload) as worker:
            # This worker may be new, and cold: on a real device the one before has ended if a
            # split did not fit.
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
    ) -> SimultaneousWindows:
        common = CommonWindow([workload.group for workload in workloads], rule)

        def measure_until_over(workload: Workload, worker: Worker) -> WorkloadRunner:
            """Measures until the common window is over; ends it on any error."""
            # No warm-up: this worker had it, as a device whose worker fails is not measured again.
            runner = self._runner(workload, worker)
            step_s = self.warm_up_of(workload).step_s
            try:
                with runner.sensors.watching():
                    for timing in runner.train(
                        steps_per_timing=steps_per_timing(rule.timing_s, step_s),
                        until=common.is_over,
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
        return SimultaneousWindows(overlap_s=common.overlap_s, windows=tuple(windows))


def belongs_to(window: Window, workload: Workload) -> bool:
    """Whether it may be the workload's: one of a damaged journal may not."""
    if workload.wants_stamps and not window.stamped:
        return False
    # Only tests and benches have workloads without devices.
    replicas = len(workload.devices or workload.split.batches)
    return len(window.throttled) == replicas


class CommonWindow:
    """Begins when each worker has given its first timing, ends when each has given enough.

    A timing counts if its worker's timing before it arrived after the window's begin, so that it
    began after that too, and if it arrives before the window's end: then every device trained all
    the while. Only this process's clock says when a timing arrives. The workers' threads share the
    window.
    """

    def __init__(self, groups: Sequence[int], rule: StoppingRule) -> None:
        """The window ends when the timings that count of each group's worker reach the rule."""
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
                if len(self._came_s) == len(self.counted):
                    self._began_s = now_s
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
