"""The workers of a measurement: started, asked, and replaced or ended when one fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeVar

from gpubalance.errors import GpubalanceError, OutOfMemory
from gpubalance.results.combine_rules import CombineRules
from gpubalance.results.timing import Overhead
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit, signals_held
from gpubalance.workers.messages import Build, Ready
from gpubalance.workers.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Self
T = TypeVar("T")


class KnownRules(Protocol):
    """The combine rules that the parity check has found of models."""

    def checking(self, settings: Settings) -> AbstractContextManager[None]:
        """Inside the block no other worker checks the model in these settings."""

    def of(self, settings: Settings) -> CombineRules | None:
        """Those of the model in these settings; None if it was not checked."""

    def note(self, settings: Settings, combine_rules: CombineRules) -> None:
        """Takes what a worker has found."""


def build_in(worker: Worker, build: Build, kept_rules: KnownRules | None) -> None:
    """Builds the model in a worker, which checks it unless another one does or has done so."""
    if kept_rules is None:
        worker.open(build)
        return
    with kept_rules.checking(build.settings):
        combine_rules = kept_rules.of(build.settings)
        if combine_rules is None:
            worker.open(build)
            kept_rules.note(build.settings, worker.facts.combine_rules)
            return
    worker.open(build.model_copy(update={"combine_rules": combine_rules}))


class WorkerGroup:
    """The workers of a measurement: one for each group of devices, which sees only these devices.

    A joint run is one group of all its devices: TensorFlow sums the gradients within one process
    or, if they are on several hosts, between one process for each device. A probe is a group of one
    device. Several groups are several models that train at the same time.

        with WorkerGroup(devices, build=Build(settings=settings, joint=joint)) as worker_group:
            with worker_group.worker() as worker:
                timings = list(worker.measure(split))

    What it promises:

    Start       `worker` and `each` start the workers that they need and that are missing, which
                then build the model, all at the same time. With `kept_rules` a model is checked by
                one of them, while the others wait.
    Order       Groups, workers and their answers have one order, that of the groups. A worker does
                one thing after the other; different workers do what `each` asks of them at the same
                time.
    Replies     A worker's replies are handed to `work` as they come. With several workers `each`
                runs `work` in a thread for each; with one, in the caller's own thread.
    Deadlines   No wait is endless: a worker may be silent for `deadline_s`, or for as long as suits
                its task, and never past `limit`.
    Failures    A GpubalanceError while a worker is used, or builds the model, is its failure, and
                goes into `failures` under the number of its group. With `worker` it is raised too;
                with `each` the other workers go on. All other exceptions pass through.
    Recovery    A worker that failed has ended when the block of `worker` is left, or `each`
                returns. The next call starts a new one in its place, as a GPU gets its memory back
                only when the process ends. A worker of simulated devices that ran out of memory
                stays: that memory is only counted.
    Signals     They reach the main thread only. An interrupt while several workers are asked kills
                them all, then passes through. `kill` may be called from any thread: whoever waits
                for a worker hears that it has died.
    End         After `end`, which leaving the `with` block calls, no worker is left, nor any
                process that one started. Workers also end by themselves when this process is gone,
                however it ended.

    Only `Process` knows on which host a worker runs: one on another host keeps the same promises.
    """

    # What the first worker that lives reported of the model; memory limits are of all their devices
    facts: Ready

    def __init__(
        self,
        *groups: Sequence[Device],
        build: Build | Sequence[Build] | None = None,
        purpose: str = "run",
        deadline_s: float | None = None,
        limit: TimeLimit = NO_LIMIT,
        report: Callable[[str], None] | None = None,
        kept_rules: KnownRules | None = None,
    ) -> None:
        """`build` is for all groups, or has one for each. `purpose` is part of the logs' names.

        `report` is called with what the worker group is doing if that takes long. A model in
        `kept_rules` is not checked again.
        """
        self.groups = tuple(tuple(group) for group in groups)
        self.failures: dict[int, GpubalanceError] = {}
        self.overhead = Overhead()  # of all workers that there have been
        self.kept_rules = kept_rules
        self._builds: Sequence[Build] = ()  # one for each group; none: nothing is built
        if isinstance(build, Build):
            self._builds = [build] * len(groups)
        elif build is not None:
            self._builds = build
        self._purpose = purpose
        self._deadline_s = deadline_s
        self._limit = limit
        self._report = report
        self._workers: dict[int, Worker] = {}
        self._ahead: dict[int, Worker] = {}  # for the next start
        self._killed = False
        self._noting = Lock()  # workers are asked in threads

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def alive(self) -> bool:
        """Whether every group has a worker."""
        return len(self._workers) == len(self.groups)

    def start(self, *, then: WorkerGroup | None = None) -> None:
        """Starts the missing workers, which then build the model. Raises the first group's failure.

        Meanwhile, as nothing is measured yet, workers of `then` load TensorFlow: the worker group
        that is used next, which may be this one.
        """
        self.failures = {}
        self._start(range(len(self.groups)), then)
        self._raise_failure()

    def load(self) -> None:
        """Starts workers for the next `start`, which load TensorFlow and touch no device."""
        for number, group in enumerate(self.groups):
            if number not in self._ahead and not _needs_the_cores(group):
                self._ahead[number] = self._new_worker(number)

    def _new_worker(self, number: int) -> Worker:
        return Worker(
            self.groups[number],
            self._purpose,
            self._deadline_s,
            self._limit,
            self._note,
        )

    def _note(self, overhead: Overhead) -> None:
        with self._noting:
            self.overhead += overhead

    def _start(self, numbers: Sequence[int], then: WorkerGroup | None = None) -> None:
        """Starts the missing workers of these groups; notes every failure."""
        missing = [number for number in numbers if number not in self._workers]
        if not missing:
            return
        began_s = time.monotonic()
        try:
            for number in missing:
                ahead = self._ahead.pop(number, None)
                self._workers[number] = ahead or self._new_worker(number)
                self._note(Overhead(workers=1))
            if then is not None:
                then.load()
            if self._killed:
                # The thread that killed could not see these yet. What they are asked then fails.
                self.kill()
            if self._builds:
                self._open(missing)
        except BaseException:
            # A worker that has not built the model must not be asked anything
            unopened = {}
            for number in missing:
                if number in self._workers and not self._workers[number].is_open:
                    unopened[number] = self._workers.pop(number)
            _end(unopened)
            raise
        self._note(Overhead(starting_s=time.monotonic() - began_s))

    def _open(self, numbers: Sequence[int]) -> None:
        """Has the workers build the model, and combines what they report of it."""
        if self._report is not None:
            self._report(self._opening(numbers))

        def build(number: int, worker: Worker) -> None:
            build_in(worker, self._builds[number], self.kept_rules)

        self._at_once(build, numbers)
        facts = [worker.facts for _, worker in sorted(self._workers.items())]
        if facts:
            limits: list[int | None] = []
            for ready in facts:
                limits += ready.memory_limit_bytes
            self.facts = facts[0].model_copy(
                update={"memory_limit_bytes": tuple(limits)}
            )

    def _opening(self, numbers: Sequence[int]) -> str:
        all_settings = [self._builds[number].settings for number in numbers]
        models = " and ".join(
            dict.fromkeys(settings.model for settings in all_settings)
        )
        devices = [device for number in numbers for device in self.groups[number]]
        names = ", ".join(f"{device.label} {device.name}" for device in devices)
        text = f"starting TensorFlow, building {models} on {names}"
        if any(settings.model_is_code for settings in all_settings):
            text += (
                f"; what it prints is kept in {self._workers[min(numbers)].process.log}"
            )
        return text

    @contextmanager
    def worker(self, number: int = 0) -> Iterator[Worker]:
        """The worker of the group of that number, started if it is missing. Raises its failure."""
        self.failures = {}
        self._start([number])
        self._raise_failure()
        with self._noting_failure(number) as worker:
            yield worker

    def each(
        self, work: Callable[[int, Worker], T], among: Sequence[int] | None = None
    ) -> dict[int, T]:
        """What `work` returns for each group's number and worker, all run at once, by that number.

        `among` restricts it to these groups: the other workers are idle meanwhile. For a group that
        is missing in the result, `failures` has the reason.
        """
        numbers = range(len(self.groups)) if among is None else among
        self.failures = {}
        self._start(numbers)
        return self._at_once(
            work, [number for number in numbers if number in self._workers]
        )

    def _at_once(
        self, work: Callable[[int, Worker], T], numbers: Sequence[int]
    ) -> dict[int, T]:
        answers: dict[int, T] = {}

        def attempt(number: int) -> None:
            with suppress(GpubalanceError), self._noting_failure(number) as worker:
                answers[number] = work(number, worker)

        if len(numbers) == 1:
            attempt(numbers[0])
        elif numbers:
            with ThreadPoolExecutor(len(numbers)) as threads:
                try:
                    # An interrupt in `submit` would leave a thread that nobody waits for.
                    with signals_held():
                        attempts = [
                            threads.submit(attempt, number) for number in numbers
                        ]
                    for future in attempts:
                        future.result()
                except BaseException:
                    # Each thread that waits for its worker must hear of it
                    self.kill()
                    raise
        return dict(sorted(answers.items()))

    @contextmanager
    def _noting_failure(self, number: int) -> Iterator[Worker]:
        """Notes a failure in the block, and ends a worker that can't be used after it."""
        worker = self._workers[number]
        try:
            yield worker
        except GpubalanceError as error:
            self.failures[number] = error
            if not _survives(worker, error):
                worker.process.end()
                del self._workers[number]
            raise

    def _raise_failure(self) -> None:
        if self.failures:
            raise self.failures[min(self.failures)]

    def regroup(self, devices: Sequence[Device]) -> None:
        """Goes on with one group of these devices. Unless it is the only one, all workers end."""
        groups = (tuple(devices),)
        if groups != self.groups:
            self.end()
            self.groups = groups

    def rebuild(self, build: Build) -> None:
        """Has the workers that start from now on build this."""
        self._builds = [build] * len(self.groups)

    def drop(self) -> None:
        """Ends the workers; those that were started ahead wait for the next `start`."""
        _end(self._workers)

    def kill(self) -> None:
        """Kills every worker for good, including those that another thread is about to start."""
        self._killed = True
        for worker in list(self._workers.values()) + list(self._ahead.values()):
            worker.process.request_exit()

    def end(self) -> None:
        """Ends every worker, and waits until they are gone."""
        _end(self._workers)
        _end(self._ahead)


def _end(workers: dict[int, Worker]) -> None:
    """Ends the workers at the same time."""
    for worker in workers.values():
        worker.process.request_exit()
    for worker in workers.values():
        worker.process.end()
    workers.clear()


def _survives(worker: Worker, error: GpubalanceError) -> bool:
    if not isinstance(error, OutOfMemory):
        return False
    is_simulated = all(device.simulated for device in worker.devices)
    return is_simulated and worker.is_open and worker.process.lives


def _needs_the_cores(devices: Sequence[Device]) -> bool:
    """Whether one is a simulated device without a profile: that measures this machine's cores.

    Nothing else may run meanwhile.
    """
    return any(device.simulated and device.profile is None for device in devices)
