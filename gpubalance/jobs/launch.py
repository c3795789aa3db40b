"""`launch`: runs a training script on a plan's devices, and after a loss on those that are left."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import ExitStack
from dataclasses import dataclass

from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    Interrupted,
    PartialResult,
    UsageError,
)
from gpubalance.jobs.devices import devices_left
from gpubalance.jobs.plan.plan import check_curves, split_over
from gpubalance.results.plan import Plan
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.requests import LaunchedSplit, Launching, TrainingProgress
from gpubalance.system.deadlines import signals_held
from gpubalance.workers.agent import GRACE_S
from gpubalance.workers.failures import ending
from gpubalance.workers.hosts import Report, Script, connected

# What shells add to the number of the signal that ended a process
_BY_SIGNAL = 128


@dataclass(frozen=True)
class End:
    """How the processes ended: the exit code or the error of the first that failed, and how far.

    `lives_on_s` is for how long a process may still live on a host that is silent.
    """

    code: int
    why: str
    progress: TrainingProgress
    error: GpubalanceError | None = None
    lives_on_s: float = 0.0

    @property
    def is_loss(self) -> bool:
        """Whether a process or host was lost, and it was not the script itself that ended."""
        return self.code > _BY_SIGNAL or self.error is not None


def processes_of(devices: Sequence[Device]) -> list[list[Device]]:
    """The devices of each process: one for those of one host, else one for each device."""
    if len(hosts_of(devices)) == 1:
        return [list(devices)]
    return [[device] for device in devices]


def run_once(
    devices: Sequence[Device],
    command: Sequence[str],
    report: Report,
    reported: Callable[[TrainingProgress], None],
    deadline_s: float | None = None,
    launched: LaunchedSplit | None = None,
) -> End:
    """Runs the command in the processes of these devices.

    At the first failure all are ended. Raises what `connected` does, and Interrupted.
    """
    groups = processes_of(devices)
    codes: list[Future[int]] = []
    with (
        ThreadPoolExecutor(len(groups)) as threads,
        connected(devices),
        ExitStack() as started,
    ):
        scripts = [started.enter_context(Script(group)) for group in groups]
        addresses = tuple(script.greeted().address for script in scripts)
        try:
            with signals_held():
                for rank, script in enumerate(scripts):
                    cluster = None
                    if len(scripts) > 1:
                        cluster = Cluster(addresses=addresses, rank=rank)
                    script.run(command, cluster, launched)
                for script in scripts:
                    codes.append(
                        threads.submit(script.code, report, reported, deadline_s)
                    )
            ended_well: list[str] = []
            for ended in as_completed(codes):
                number = codes.index(ended)
                if ended.exception() or ended.result():
                    # Or the training might go on on a host that no longer answers
                    scripts[number].request_exit()
                    wait(codes, GRACE_S)  # the others may say why
                    return _failed(scripts, codes, number, ended_well)
                ended_well.append(scripts[number].label)
        except KeyboardInterrupt as interrupt:
            for script in scripts:
                script.signal(getattr(interrupt, "number", signal.SIGINT))
            wait(codes, 2 * GRACE_S)
            raise Interrupted.by(
                interrupt, remedy="all its processes have ended"
            ) from None
    return End(0, "all have ended", TrainingProgress())


def _failed(
    scripts: Sequence[Script],
    codes: Sequence[Future[int]],
    first: int,
    ended_well: Sequence[str],
) -> End:
    """The end of processes of which that one was the first that failed.

    Those of `ended_well` had ended before: TensorFlow takes them for crashed if another still sums.
    """
    progress = max(
        (script.progress for script in scripts), key=lambda known: known.place
    )
    lives_on_s = max(script.lives_on_s for script in scripts)
    error = codes[first].exception()
    if error is None:
        code = codes[first].result()
        signed = _BY_SIGNAL - code if code > _BY_SIGNAL else code
        why = f"the process of {scripts[first].label} {ending(signed)}"
        if ended_well:
            why += f", after {', '.join(sorted(ended_well))} had ended"
        return End(code, why, progress)
    if not isinstance(error, GpubalanceError):
        raise error
    if isinstance(error, DeadlinePassed):
        error.message += _behind(scripts)
    return End(error.exit_code, error.message, progress, error, lives_on_s)


def _behind(scripts: Sequence[Script]) -> str:
    """Which of them have come less far than the others, or how far all have come."""
    minimum = min(
        (script.progress for script in scripts), key=lambda known: known.place
    )
    behind = [script for script in scripts if script.progress.place == minimum.place]
    if len(behind) == len(scripts):
        return f", {minimum.place_text}"
    labels = ", ".join(script.label for script in behind)
    return f": the others wait for {labels}, {minimum.place_text}"


def launch(
    plan: Plan, command: Sequence[str], report: Report, how: Launching | None = None
) -> int:
    """Runs the command in all processes until they end.

    Returns the exit code of the first that failed, else 0. A plan for one host takes one process,
    as one strategy has all its devices. An interrupt is passed on to every process. Raises what
    `Script` does if a process can't start, its host is lost or its steps do not come in time: then
    all end.

    With restarts they start again after a loss, and after any failure once a step was trained: with
    the best split of the devices that are left, by the plan. Raises PartialResult for too few.
    """
    how = how or Launching()
    if how.restarts:
        check_curves(plan)
    elif how.at_least > 1:
        raise UsageError("--at-least needs --restarts", remedy="add --restarts N")
    if how.at_least > len(plan.devices):
        raise UsageError(
            f"--at-least {how.at_least} is more than the plan's {len(plan.devices)} "
            "devices"
        )
    return _Launch(plan, command, report, how).run()


class _Launch:
    """The starts of one launch, and what was seen in them."""

    def __init__(
        self, plan: Plan, command: Sequence[str], report: Report, how: Launching
    ) -> None:
        self._plan = plan
        self._command = command
        self._report = report
        self._how = how
        self._split: BatchSplit | None = None  # in place of the plan's
        self._has_trained = False
        self._begins = threading.Lock()  # who gets it first says how a start begins

    def run(self) -> int:
        """Starts the processes until they end well, or may not be started again."""
        restarts = 0
        while True:
            end = self._start()
            if end.code == 0:
                return 0
            self._has_trained = self._has_trained or end.progress.has_trained
            # A script that failed names no process, and one that was killed prints nothing.
            if self._how.restarts or end.error is None:
                self._say(end.why)
            if self._how.restarts:
                self._say(end.progress.lost_text)
            if restarts == self._how.restarts or not (end.is_loss or self._has_trained):
                break
            restarts += 1
            time.sleep(end.lives_on_s)
            self._split = self._split_left(end)
            self._say(
                f"restart {restarts} of {self._how.restarts}: {self._described(self._split)}"
            )
        if end.error is not None:
            raise end.error
        return end.code

    def _start(self) -> End:
        split = self._plan.split
        launched = None
        if self._split is not None:
            split = self._split
            launched = LaunchedSplit(created=self._plan.created, split=split)
        devices = [self._plan.devices[number] for number in split.used]
        self._begins = threading.Lock()
        try:
            return run_once(
                devices,
                self._command,
                self._report,
                self._reported,
                deadline_s=self._how.deadline_s,
                launched=launched,
            )
        except EnvironmentFault as error:
            if launched is None:
                raise
            # A host that was there a moment ago
            return End(error.exit_code, error.message, TrainingProgress(), error)

    def _split_left(self, end: End) -> BatchSplit:
        """The split of the devices that are left. Raises PartialResult for too few."""
        left, errors = devices_left(self._plan.devices)
        for error in errors:
            self._say(error.message)
        if len(left) < self._how.at_least:
            raise PartialResult(
                f"only {len(left)} of {len(self._plan.devices)} devices are left, "
                f"fewer than --at-least {self._how.at_least}",
                cause=f"{end.why}; {end.progress.lost_text}",
                remedy="once they are back, the same command continues from the last "
                "backup",
            )
        return split_over(self._plan, left)

    def _described(self, split: BatchSplit) -> str:
        """`alpha:0 90, beta:0 54, the global batch of 144 as before`."""
        parts = []
        for number in split.used:
            parts.append(f"{self._plan.devices[number].label} {split.batches[number]}")
        batch = split.global_batch
        if batch == self._plan.global_batch:
            return f"{', '.join(parts)}, with the global batch of {batch:,} as before"
        before = self._plan.global_batch
        return f"{', '.join(parts)}: {batch:,} of the global batch of {before:,} fit"

    def _reported(self, progress: TrainingProgress) -> None:
        """Says once a start how its training begins."""
        if (
            not self._how.restarts
            or not progress.epoch
            or not self._begins.acquire(blocking=False)
        ):
            return
        if self._split is not None:
            self._say(f"training continues with epoch {progress.epoch}")
        elif not progress.backs_up:
            self._say("fit has no BackupAndRestore callback: a restart begins anew")

    def _say(self, text: str) -> None:
        self._report(text, "launch", "stderr")
