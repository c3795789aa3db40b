"""`launch`: runs a training script in one process for each device of a plan."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack

from gpubalance.errors import Interrupted
from gpubalance.results.plan import Plan
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import hosts_of
from gpubalance.workers.hosts import Script, Tell, connected
from gpubalance.workers.keeper import GRACE_S
from gpubalance.workers.process import signals_held


def launch(plan: Plan, command: Sequence[str], tell: Tell) -> int:
    """Runs the command in all processes until they end. Returns the exit code of the first that failed, else 0.

    A plan for one host takes one process, as one strategy has all its devices. An interrupt is passed on to every
    process. Raises what `Script` does if a process can't start or its host is lost: then all end.
    """
    devices = [plan.devices[number] for number in plan.split.used]
    groups = [[device] for device in devices] if len(hosts_of(devices)) > 1 else [devices]
    codes: list[Future[int]] = []
    with ThreadPoolExecutor(len(groups)) as threads, connected(devices), ExitStack() as started:
        scripts = [started.enter_context(Script(group)) for group in groups]
        addresses = tuple(script.greeted().address for script in scripts)
        try:
            with signals_held():
                for rank, script in enumerate(scripts):
                    script.run(command, Cluster(addresses=addresses, rank=rank) if len(groups) > 1 else None)
                codes += [threads.submit(script.code, tell) for script in scripts]
            return _first(codes)
        except KeyboardInterrupt as interrupt:
            for script in scripts:
                script.signal(getattr(interrupt, "number", signal.SIGINT))
            wait(codes, 2 * GRACE_S)
            raise Interrupted.by(interrupt, remedy="all its processes have ended") from None


def _first(codes: Sequence[Future[int]]) -> int:
    """The exit code of the first that fails, after the others had a moment to say why; 0 once all have ended well."""
    left = set(codes)
    while left:
        done, left = wait(left, return_when=FIRST_COMPLETED)
        failed = next((one for one in codes if one in done and (one.exception() or one.result())), None)
        if failed is not None:
            wait(left, GRACE_S)
            return failed.result()
    return 0
