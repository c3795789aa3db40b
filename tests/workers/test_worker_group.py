"""What a worker group promises, with real processes and an engine that trains nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import OutOfMemory, PartialResult
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build
from gpubalance.workers.process import Process
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup
from tests.cli.program import lives
from tests.support.asked import asked
from tests.support.cases import cases
from tests.support.told import refused
from tests.workers.test_process import gone

ROOT = Path(__file__).parents[2]
PAIR, JOINT = simulated_devices(str(ROOT / "configs/quick-pair.toml"))
FIRST, SECOND = PAIR
GPU = Device(index=0, uuid="GPU-a", name="card", memory_bytes=1 << 30, simulated=False)
BUILD = Build(settings=Settings(model="small"))


def pid(worker: Worker) -> int:
    assert isinstance(worker.process, Process)
    return worker.process.pid


def step(worker: Worker) -> int:
    """Trains a step on each of the worker's devices, and returns its process id."""
    list(worker.measure(BatchSplit((8,) * len(worker.devices))))
    return pid(worker)


def numbered(work: Callable[[Worker], int]) -> Callable[[int, Worker], int]:
    """Work for a worker group's `each`, which passes the worker's number too."""
    return lambda _, worker: work(worker)


@contextmanager
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt: a shell's background job ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("stand_in")
def test_a_worker_is_asked_again_until_its_group_changes() -> None:
    """A worker is asked again and again until its group changes and one started ahead is the next."""
    with WorkerGroup(PAIR, build=BUILD) as worker_group:
        assert not worker_group.alive
        worker_group.start(then=worker_group)
        first = asked(worker_group, step)
        worker_group.regroup(PAIR)
        assert asked(worker_group, step) == first
        assert (worker_group.alive, worker_group.overhead.workers) == (True, 1)
        assert len(worker_group.facts.memory_limit_bytes) == 2
        worker_group.drop()
        assert gone(first)
        second = asked(worker_group, step)
        assert worker_group.overhead.workers == 2
        worker_group.regroup([SECOND])
        assert gone(second)
        assert asked(worker_group, lambda worker: worker.devices) == (SECOND,)


@pytest.mark.usefixtures("stand_in")
def test_the_first_step_of_each_size_in_each_worker_is_overhead() -> None:
    together = threading.Barrier(2, timeout=60)  # neither passes it alone
    with WorkerGroup([FIRST], [SECOND], build=BUILD) as worker_group:
        worker_group.each(lambda *_: together.wait())
        worker_group.each(numbered(step))
        started = worker_group.overhead
        assert (started.workers, started.traced) == (2, 2)
        assert min(started.starting_s, started.tracing_s) > 0
        worker_group.each(numbered(step))
        assert worker_group.overhead == started
        worker_group.each(lambda _, worker: list(worker.measure(BatchSplit((16,)))))
        assert worker_group.overhead.traced == 4
        third = asked(worker_group, pid)
        assert lives(psutil.Process(third))
    assert gone(third)


def test_a_failure_is_its_devices(
    engine_that: Callable[[str], None], tmp_path: Path
) -> None:
    """One dies in a step, and its next worker, in a fresh process, as it builds the model."""
    pids = tmp_path / "pids"
    engine_that(f"""
        import os
        def built(devices):
            with open({str(pids)!r}, "a") as file:
                file.write(f"{{os.getpid()}} ")
            if len(open({str(pids)!r}).read().split()) > 2 and devices[0].index == 1:
                os.abort()
        def step(devices, batches, number):
            if devices[0].index == 1:
                os.abort()
    """)
    with WorkerGroup([FIRST], [SECOND], build=BUILD) as worker_group:
        before = worker_group.each(numbered(pid))
        assert worker_group.each(numbered(step)) == {0: before[0]}
        assert isinstance(worker_group.failures[1], PartialResult)
        told = f"SIGABRT while training with batches 8 on {SECOND.label}"
        assert told in worker_group.failures[1].message
        assert gone(before[1])
        with refused("SIGABRT while building small", PartialResult):
            worker_group.start()
        assert worker_group.overhead.workers == 3
        assert worker_group.each(numbered(step)) == {0: before[0]}
        assert "SIGABRT while building small" in worker_group.failures[1].message
        assert not worker_group.alive
        assert worker_group.each(numbered(step), among=[0]) == {0: before[0]}
        assert worker_group.failures == {}
    every = [int(number) for number in pids.read_text().split()]
    assert len(every) == 4  # the second device's again whenever it was asked for
    assert all(map(gone, every))


@cases("device, stays", (FIRST, True), (GPU, False))
def test_after_an_out_of_memory_a_gpu_has_a_fresh_worker(
    engine_that: Callable[[str], None], device: Device, stays: bool
) -> None:
    """A simulated device's memory is only counted; a GPU's comes back when the process ends."""
    engine_that("def holds(device, size):\n    return size < 100\n")
    with WorkerGroup([device], build=BUILD) as worker_group:
        before = asked(worker_group, pid)
        with refused("ran out of memory with batches 100", OutOfMemory):
            asked(worker_group, lambda worker: list(worker.measure(BatchSplit((100,)))))
        assert worker_group.alive == stays
        assert (asked(worker_group, step) == before) == stays


def test_whoever_waits_hears_of_a_kill(engine_that: Callable[[str], None]) -> None:
    """Whoever waits hears that another thread has killed the worker group or an interrupt has."""
    engine_that("import time\ndef step(*_):\n    time.sleep(600)\n")
    waiting_group = WorkerGroup([FIRST], [SECOND], build=BUILD, deadline_s=60)
    with interrupts(), waiting_group as worker_group:
        pids = worker_group.each(numbered(pid))
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            worker_group.each(numbered(step))
    assert all(map(gone, pids.values()))
    with ThreadPoolExecutor(1) as thread, WorkerGroup([FIRST], build=BUILD) as one:
        one.start()
        waiting = thread.submit(asked, one, step)
        time.sleep(0.2)
        one.kill()
        with pytest.raises(PartialResult):
            waiting.result(60)
        # A worker that is started after that is killed too
        with pytest.raises(PartialResult):
            asked(one, step)


@pytest.mark.usefixtures("stand_in")
def test_an_interrupt_while_threads_start_leaves_none_of_them() -> None:
    """Such a thread went on with its worker, while the caller ended the worker group.

    The caller then made a result of what there was.
    """
    came = threading.Event()
    ended = []

    def interrupt(*_: object) -> None:
        """Interrupts the process once; a new thread calls this before anything else."""
        if not came.is_set():
            came.set()
            os.kill(os.getpid(), signal.SIGINT)

    def work(number: int, worker: Worker) -> None:
        time.sleep(0.5)
        ended.append(number)

    with interrupts(), WorkerGroup([FIRST], [SECOND]) as worker_group:
        worker_group.start()
        threading.settrace(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                worker_group.each(work)
        finally:
            threading.settrace(None)  # Python's own way to take it back
        assert sorted(ended) == [0, 1]
