"""One start of a training script: its processes on a split's devices, until they end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import ExitStack
from dataclasses import dataclass

from gpubalance.errors import DeadlinePassed, GpubalanceError, Interrupted
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.launching import LaunchedSplit, TrainingProgress
from gpubalance.system.signals import signals_held
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
            for ended in as_completed(codes):
                if ended.exception() or ended.result():
                    # Or the training might go on on a host that no longer answers
                    scripts[codes.index(ended)].request_exit()
                    wait(codes, GRACE_S)  # the others may say why
                    return _failed(scripts, codes, codes.index(ended))
        except KeyboardInterrupt as interrupt:
            for script in scripts:
                script.signal(getattr(interrupt, "number", signal.SIGINT))
            wait(codes, 2 * GRACE_S)
            raise Interrupted.by(
                interrupt, remedy="all its processes have ended"
            ) from None
    return End(0, "all have ended", TrainingProgress())


def _failed(scripts: Sequence[Script], codes: Sequence[Future[int]], first: int) -> End:
    """The end of processes of which that one was the first that failed."""
    progress = max(
        (script.progress for script in scripts), key=lambda known: known.place
    )
    lives_on_s = max(script.lives_on_s for script in scripts)
    error = codes[first].exception()
    if error is None:
        code = codes[first].result()
        signed = _BY_SIGNAL - code if code > _BY_SIGNAL else code
        return End(
            code, f"the process of {scripts[first].label} {ending(signed)}", progress
        )
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
