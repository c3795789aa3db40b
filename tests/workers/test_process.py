"""Real workers, really killed."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from gpubalance import programs
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import EnvironmentFault, OutOfMemory, PartialResult
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Record
from gpubalance.settings.settings import Settings
from gpubalance.workers.failures import tail
from gpubalance.workers.messages import Build, Measured
from gpubalance.workers.process import Process
from gpubalance.workers.ranks import worker_process
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup
from tests.cli.program import TINY, lives
from tests.support import forks
from tests.support.asked import asked
from tests.support.known import known
from tests.support.python import python
from tests.support.told import refused

pytestmark = pytest.mark.xdist_group("workers' process")

ROOT = Path(__file__).parents[2]
PAIR, JOINT = simulated_devices(str(ROOT / "configs/quick-pair.toml"))


def process() -> Process:
    return worker_process(PAIR, "test")


def gone(pid: int) -> bool:
    """Whether a process ends soon.

    One that was killed as part of a group may still need the processor for it.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        return not left_of([psutil.Process(pid)], within_s=10)
    return True


def left_of(
    there: Sequence[psutil.Process], within_s: float = 35
) -> list[psutil.Process]:
    """The processes that do not end within a host's wait for whoever has started it."""
    end = time.monotonic() + within_s
    left = list(there)
    while left and time.monotonic() < end:
        left = [process for process in left if lives(process)]
        time.sleep(0.02)
    return left


def test_a_worker_that_cannot_be_started_is_one_error() -> None:
    """There is room for one pipe, and not for both."""
    free = [os.dup(0) for _ in range(4)]
    for descriptor in free:
        os.close(descriptor)
    before = psutil.Process().num_fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[3], hard))
    try:
        with refused("its process can't be run: Too many open files", EnvironmentFault):
            process()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # This is Python's own fault: github.com/python/cpython/issues/87474.
    assert psutil.Process().num_fds() == before + 2 * (sys.version_info < (3, 11, 4))


@pytest.mark.usefixtures("own_processes")
def test_a_script_that_its_agent_can_not_start_says_why() -> None:
    """The agent may open a file, and not all pipes of a script. It ends with its own input."""
    start = {"Start": {"environment": {}, "folder": "/", "words": ["-c", "pass"]}}
    few = ["sh", "-c", 'ulimit -n 8; exec "$0" "$1"', sys.executable, programs.AGENT]
    pipes: Any = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with cast("Any", subprocess.Popen(few, text=True, **pipes)) as agent:
        agent.stdin.write(json.dumps(start) + "\n")
        agent.stdin.flush()
        lines = filter(str.strip, agent.stdout)  # between them it shows that it lives
        told = [json.loads(line) for line in islice(lines, 3)]
        agent.stdin.close()
    why = "gpubalance can't start it: Too many open files"
    printed = {"Printed": {"stream": "stderr", "text": why}}
    assert told[1:] == [printed, {"Ended": {"code": 126}}]


@pytest.mark.usefixtures("stand_in")
def test_a_worker_refuses_what_it_does_not_know() -> None:
    class Open(Record):
        surprise: int

    with process() as started:
        started.send(Open(surprise=1))
        with pytest.raises(PartialResult) as caught:
            started.receive(30, "opening")
    assert "surprise" in caught.value.log


def test_an_interrupt_in_the_middle_of_a_start_leaves_no_worker() -> None:
    code = (
        "import atexit, os, signal, subprocess\n"
        # Whoever runs the tests in the background has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(lambda: print('ended', started[0].returncode is not None))\n"
        "from tests.workers.test_process import process\n"
        "started = []\n"
        "class Interrupted(subprocess.Popen):\n"
        "    def __init__(self, *arguments, **options):\n"
        "        super().__init__(*arguments, **options)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        started.append(self)\n"
        "subprocess.Popen = Interrupted\n"
        "try:\n"
        "    process()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = python("-c", code, timeout=60)
    assert done.stdout.split("\n")[:2] == ["interrupted", "ended True"], done.stderr


def needed(*batches: int) -> tuple[int, ...]:
    """Bytes of each device for these batches, by the profile."""
    needs = [known(device.profile).memory_at for device in PAIR]
    pairs = zip(needs, batches, strict=True)
    return tuple(need(batch, JOINT.extra_memory) for need, batch in pairs)


@pytest.fixture(scope="module")
def opened() -> Iterator[Worker]:
    """A worker with TensorFlow, for one model after the other."""
    with forks.forking(), WorkerGroup(PAIR) as worker_group:
        yield asked(worker_group, lambda worker: worker)


def test_a_worker_measures_any_split_and_an_oom_is_its_devices(opened: Worker) -> None:
    """A worker measures any split and one that does not fit is its device's fault."""
    opened.open(Build(settings=Settings(model=TINY), joint=JOINT))
    for batches in ((30, 20), (5, 45)):
        how: Any = {"at_least": 3, "steps_per_timing": 2}
        *timings, last = opened.measure(BatchSplit(batches), **how)
        assert [t.steps for t in timings if isinstance(t, Timing)] == [2, 2, 2]
        assert isinstance(last, Measured)
        assert last.memory_peak_bytes == needed(*batches)
    whole, parts = BatchSplit((30, 5000)), BatchSplit((30, 5000), (30, 2500))
    for split, says in (
        (whole, "GPU:1 ran out of memory with batches 30/5000"),
        (parts, "batches 30/5000 in micro-batches 30/2500"),
    ):
        with refused(says, OutOfMemory) as caught:
            list(opened.measure(split))
        assert caught.value.replica == 1
    # Micro-batches are what memory is for
    *_, last = opened.measure(BatchSplit((30, 2000), (30, 20)))
    assert isinstance(last, Measured)
    assert last.memory_peak_bytes == needed(30, 20)


BROKEN = """
import keras

def fails():
    return helper()

def helper():
    raise KeyError("of mine")

class Broken(keras.layers.Layer):
    def call(self, x, training=None):
        if training:
            raise ValueError("not in training")
        return x

def endless():
    inf = keras.layers.Lambda(lambda x: x / 0.0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), inf])

def fails_in_training():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), Broken()])
"""


def test_a_failed_model_has_the_users_lines(opened: Worker, tmp_path: Path) -> None:
    """A model that fails is the user's with their traceback and nothing of ours."""
    file = tmp_path / "mine.py"
    file.write_text(BROKEN)

    def build(name: str) -> None:
        opened.open(Build(settings=Settings(model=f"{file}:{name}"), joint=JOINT))

    with refused(r"in helper(.|\n)*KeyError: 'of mine'") as caught:
        build("fails")
    assert "gpubalance/" not in caught.value.message
    build("endless")
    timing, _ = opened.measure(BatchSplit((3, 2)))
    assert isinstance(timing, Timing)
    assert not timing.loss_is_finite
    build("fails_in_training")
    with refused("not in training"):
        list(opened.measure(BatchSplit((3, 2))))


TOLD_AT_EVERY_START = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795284274.373600   24078 cudart_stub.cc:31] Could not find cuda drivers on your machine.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.
2026-11-21 18:00:00.000001: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
Traceback (most recent call last):
  File "session.py", line 1, in step
    raise ValueError
"""


def test_the_end_of_the_log_is_harmless(tmp_path: Path) -> None:
    """It has no tracebacks, no empty lines, and nothing that TensorFlow tells of every start."""
    log = tmp_path / "log"
    red = b"\x1b[31mred\x1b[0m \xff\n"
    log.write_bytes(b"old\n" * 50 + b"\n \n" + TOLD_AT_EVERY_START.encode() + red)
    assert tail(log).splitlines() == ["old"] * 11 + ["red \ufffd"]
