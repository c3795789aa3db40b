"""What the tests run inside a process with fake GPUs: the engine, as a worker has it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpubalance.devices.machine import read_gpus
from gpubalance.settings.device import JointProfile
from gpubalance.settings.requests import Settings
from gpubalance.settings.shares import Shares
from tests.bench.gpu.place import show

if TYPE_CHECKING:
    from gpubalance.engine.session import Session


def session(**settings: Any) -> Session:
    """The small model on all GPUs of the machine."""
    devices = [gpu.device for gpu in read_gpus().gpus]
    show(devices)
    from gpubalance.engine.session import Session

    return Session(devices, Settings(model="small", **settings), JointProfile(), seed=0)


def steps(session: Session, split: Shares, number: int, *, stamped: bool) -> list[dict[str, Any]]:
    """When each of some steps began and ended to be queued, and its stamps; a step without them is queued before each.

    The GPUs have nothing to do before the first and after the last.
    """
    from gpubalance.engine import runtime

    session._train_with(split)
    session._run(stamped=stamped)  # traced
    runtime.wait_for(session._names)
    found = []
    for _ in range(number):
        if stamped:
            session._run()
        began_s = time.perf_counter()
        _, stamps, _ = session._run(stamped=stamped)
        found.append({"began_s": began_s, "ended_s": time.perf_counter(), "stamps": stamps.numpy().tolist()})
    runtime.wait_for(session._names)
    return found
