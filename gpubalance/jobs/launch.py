"""`launch`: runs a training script in one process for each device of a plan."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import ExitStack

from gpubalance.errors import Interrupted
from gpubalance.results.plan import Plan
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import hosts_of
from gpubalance.system.signals import signals_held
from gpubalance.workers.hosts import Script, Tell, connected
from gpubalance.workers.keeper import GRACE_S


def launch(plan: Plan, command: Sequence[str], tell: Tell) -> int:
    """Runs the command in all processes until they end.

    Returns the exit code of the first that failed, else 0. A plan for one host takes one process,
    as one strategy has all its devices. An interrupt is passed on to every process. Raises what
    `Script` does if a process can't start or its host is lost: then all end.
    """
    devices = [plan.devices[number] for number in plan.split.used]
    groups = [devices]
    if len(hosts_of(devices)) > 1:
        groups = [[device] for device in devices]
    codes: list[Future[int]] = []
    with ThreadPoolExecutor(len(groups)) as threads, connected(devices), ExitStack() as started:
        scripts = [started.enter_context(Script(group)) for group in groups]
        addresses = tuple(script.greeted().address for script in scripts)
        try:
            with signals_held():
                for rank, script in enumerate(scripts):
                    cluster = None
                    if len(scripts) > 1:
                        cluster = Cluster(addresses=addresses, rank=rank)
                    script.run(command, cluster)
                codes += [threads.submit(script.code, tell) for script in scripts]
            for ended in as_completed(codes):
                if ended.exception() or ended.result():
                    wait(codes, GRACE_S)  # the others may say why
                    return ended.result()
            return 0
        except KeyboardInterrupt as interrupt:
            for script in scripts:
                script.signal(getattr(interrupt, "number", signal.SIGINT))
            wait(codes, 2 * GRACE_S)
            raise Interrupted.by(interrupt, remedy="all its processes have ended") from None
