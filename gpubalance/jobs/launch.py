"""`launch`: a training script, in a process for each device of a plan."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from gpubalance.errors import Interrupted
from gpubalance.results.plan import Plan
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import hosts_of
from gpubalance.workers.agent import BEATS_EVERY_S
from gpubalance.workers.launched import GRACE_S
from gpubalance.workers.script import Script, Tell
from gpubalance.workers.signals import signals_held


def launch(plan: Plan, command: Sequence[str], tell: Tell) -> int:
    """Runs the command in all processes to their end. The exit code of the first that failed, else 0.

    A plan of one host is one process, as its devices are one strategy's. An interrupt is passed on to all of them.
    Raises what `Script` does where one can't begin or its host is lost: then none goes on.
    """
    devices = [plan.devices[number] for number in plan.split.used]
    groups = [[device] for device in devices] if len(hosts_of(devices)) > 1 else [devices]
    scripts: list[Script] = []
    codes: list[Future[int]] = []
    threads, over = ThreadPoolExecutor(len(groups)), threading.Event()
    threading.Thread(target=_beat, args=(scripts, over), daemon=True).start()
    try:
        for group in groups:
            with signals_held():
                scripts.append(Script(group, command, tell))
        addresses = tuple([script.listens() for script in scripts])
        for rank, script in enumerate(scripts):
            script.begin(Cluster(addresses=addresses, rank=rank) if len(scripts) > 1 else None)
        with signals_held():
            codes += [threads.submit(script.code) for script in scripts]
        return _first(codes)
    except KeyboardInterrupt as interrupt:
        for script in scripts if codes else ():
            script.pass_on(getattr(interrupt, "number", signal.SIGINT))
        wait(codes, 2 * GRACE_S)
        raise Interrupted.by(interrupt, remedy="all its processes have ended") from None
    finally:
        over.set()
        for script in scripts:
            script.let_go()
        for script in scripts:
            script.end()
        threads.shutdown()


def _beat(scripts: Sequence[Script], over: threading.Event) -> None:
    while not over.wait(BEATS_EVERY_S):
        for script in list(scripts):
            script.beat()


def _first(codes: Sequence[Future[int]]) -> int:
    """Of the first that failed; the others get a moment to say why. 0 once all have ended well."""
    left = set(codes)
    while left:
        done, left = wait(left, return_when=FIRST_COMPLETED)
        failed = next((one for one in codes if one in done and (one.exception() or one.result())), None)
        if failed is not None:
            wait(left, GRACE_S)
            return failed.result()
    return 0
