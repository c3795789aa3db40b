"""What the processes of a run over hosts promise.

The processes are real, and the engine trains nothing. A failure of one leaves the others waiting in
a collective: here they sleep.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import (
    DeadlinePassed,
    GpubalanceError,
    OutOfMemory,
    PartialResult,
)
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build, Measure
from gpubalance.workers.ranks import Ranks, merged
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup
from tests.support.asked import asked
from tests.support.told import refused
from tests.workers.test_process import gone

ROOT = Path(__file__).parents[2]
DEVICES, JOINT = simulated_devices(str(ROOT / "configs/two-hosts.toml"))
BUILD = Build(settings=Settings(model="small"), joint=JOINT)
SPLIT = BatchSplit((80, 40, 24))


@pytest.fixture
def group_that(engine_that: Callable[[str], None]) -> Callable[[str], WorkerGroup]:
    """A function that makes a worker group over both hosts, whose engine follows the script."""

    def make(script: str) -> WorkerGroup:
        engine_that(script)
        return WorkerGroup(DEVICES, build=BUILD)

    return make


def pids(worker: Worker) -> tuple[int, ...]:
    assert isinstance(worker.process, Ranks)
    return tuple(member.pid for member in worker.process._members)


FAILS = """
import os, signal, sys, time
import tensorflow as tf
def step(devices, batches, number):
    if devices[0].host == "beta":
        {act}
    {others}
def progress(devices):
    return {progress} if devices[0].host == "beta" else 5
"""
OOM = "raise tf.errors.ResourceExhaustedError(0, 0, 'OOM when allocating on device:GPU:0')"
NCCL = "raise tf.errors.InternalError(0, 0, 'NCCL: unhandled cuda error. Set NCCL_DEBUG=W')"
LOST = "raise tf.errors.UnavailableError(0, 0, 'x')"
STOPS = "os.kill(os.getpid(), signal.SIGSTOP)"
WAITS = "time.sleep(600)"
HANGS = f"sys.stderr = None; {WAITS}"  # whatever it has put in the place of stderr


LATE_OOM = f"time.sleep(0.3); {OOM}"
ALL = "^alpha:0, alpha:1, beta:0"
ABORTED = "^beta:0: the worker was ended by SIGABRT while"
FULL = "^beta:0 ran out of memory with batches 80/40/24$"
LOST_IT = "^beta:0 sent nothing .*, and alpha:0, alpha:1 lost the connection to it$"
LOST_THEM = "^alpha:0, alpha:1 sent nothing .*, and beta:0 lost the connection to them$"
NOT_COMPUTED = "^beta:0 sent .*; the others wait, because it has not computed its grad"
NO_ANSWER = "^beta:0 sent .*, because it does not respond, not even in a second"
# What beta does and what the others do, with what kind of error says so
FAILURES: dict[str, tuple[str, str, type[GpubalanceError], str]] = {
    "a death": ("os.abort()", WAITS, PartialResult, ABORTED),
    "a death that others tell of": ("os.abort()", LOST, PartialResult, ABORTED),
    "memory": (OOM, WAITS, OutOfMemory, FULL),
    "memory that NCCL tells of": (LATE_OOM, NCCL, OutOfMemory, FULL),
    "silence": (HANGS, LOST, DeadlinePassed, LOST_IT),
    "silence of two": (LOST, HANGS, DeadlinePassed, LOST_THEM),
    "a cut link": ("pass", LOST, DeadlinePassed, f"{ALL} lost the connection to each"),
    "a device or a program hangs": (HANGS, WAITS, DeadlinePassed, NOT_COMPUTED),
    "a process is stopped": (STOPS, WAITS, DeadlinePassed, NO_ANSWER),
    "all wait": (WAITS, WAITS, DeadlinePassed, f"{ALL} sent .*; each waits for the o"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_one_failure_is_told_with_its_device_and_all_are_ended(
    group_that: Callable[[str], WorkerGroup], name: str
) -> None:
    act, others, kind, says = FAILURES[name]
    progress = 5 if name == "all wait" else 4
    script = FAILS.format(act=act, others=others, progress=progress)
    with group_that(script) as worker_group:
        started = asked(worker_group, pids)

        def train(worker: Worker) -> object:
            worker._deadline_s = 1.0
            return next(worker.replies(Measure(split=SPLIT), Timing))

        with pytest.raises(kind) as caught:
            asked(worker_group, train)
        told: Any = caught.value
        assert re.search(says, told.message)
        assert all(map(gone, started))
        assert not worker_group.alive
    if kind is OutOfMemory:
        assert told.replica == 2


def test_after_that_all_start_anew(
    group_that: Callable[[str], WorkerGroup], tmp_path: Path
) -> None:
    mark = tmp_path / "failed"
    script = f"""
import os, time
def step(devices, *_):
    if not os.path.exists({str(mark)!r}):
        open({str(mark)!r}, "w").close() if devices[0].host == "beta" else time.sleep(600)
        os.abort()
"""
    with group_that(script) as worker_group:
        before = asked(worker_group, pids)
        with pytest.raises(PartialResult, match=r"^beta:0: "):
            asked(worker_group, lambda worker: list(worker.measure(SPLIT)))
        assert asked(worker_group, lambda worker: list(worker.measure(SPLIT)))
        assert not set(before) & set(asked(worker_group, pids))


def test_a_model_file_that_one_host_has_not(
    group_that: Callable[[str], WorkerGroup],
) -> None:
    """The user's own mistake is an input, wherever it shows."""
    built = "from gpubalance.errors import BadInput\ndef built(devices):\n    "
    raises = "raise BadInput('no such file')\n"
    with group_that(built + raises) as worker_group, refused("^no such file"):
        worker_group.start()
    of_beta = f"{built}if devices[0].host == 'beta': {raises}"
    with group_that(of_beta) as worker_group, refused("^beta:0: no such file"):
        worker_group.start()


def test_a_wait_for_input_is_by_how_much_the_last_device_is_late() -> None:
    """The one that waits longest has computed first; who waits least is last, 10 ms late."""
    waits: list[dict[str, Any]] = []
    for wait_s in (0.04, 0.01):
        waits.append({"steps": 1, "seconds": 0.2, "input_wait_s": wait_s})
    computes: list[Any] = [{"compute_s": (own_s,)} for own_s in (0.05, 0.1)]
    stamped = merged([Timing(**a, **b) for a, b in zip(waits, computes, strict=True)])
    assert isinstance(stamped, Timing)
    assert stamped.input_wait_s == pytest.approx(0.01)
    usual = merged([Timing(**wait) for wait in waits])
    assert isinstance(usual, Timing)
    assert usual.input_wait_s == pytest.approx(0.04)
