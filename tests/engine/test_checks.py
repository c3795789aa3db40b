"""What checks a copy and an all-reduce between devices, on TensorFlow's own logical devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.doctor.on_devices import all_reduce, copies
from gpubalance.remedies import known_error
from gpubalance.results.checkup import AllReduceTime, Check, CopyTime
from gpubalance.settings.device import Device
from gpubalance.workers.messages import Copied, Copy, Reduce, Reduced
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup
from tests.support.late import tf

NBYTES = 4096
PAIR = simulated_devices("2")[0]


def zeros(values: Any, target: str) -> Any:
    """The zeros that a direct copy gives on some consumer cards."""
    with tf.device(target):
        return tf.zeros_like(values)


def one_byte_other(values: Any, target: str) -> Any:
    with tf.device(target):
        # Of 1 to 255, neither the byte that was sent nor zero.
        other = values[-1:] % 255 + 1
        return tf.concat([values[:-1], other], 0)


class Through(WorkerGroup):
    """A worker group whose copies go through `move` instead of TensorFlow's own.

    Its worker is in this process.
    """

    def __init__(self, devices: tuple[Device, ...], move: Any) -> None:
        super().__init__(devices)
        self._move = move

    def ask(self, work: Any, *_: Any) -> Any:
        """The worker group's answer, or its worker's."""
        from gpubalance.engine import checks

        if isinstance(work, Copy):
            ends = f"CPU:{work.source}", f"CPU:{work.target}"
            return Copied(**checks.copy(*ends, NBYTES, self._move))
        assert isinstance(work, Reduce)
        told = checks.reduce(["CPU:0", "CPU:1"], work.nbytes)
        if self._move is zeros:
            told |= {"differing": (0, 3)}
        return Reduced(**told)

    @contextmanager
    def worker(self, _: int = 0) -> Iterator[Worker]:
        """The worker group itself is its worker."""
        yield cast("Worker", self)


def test_each_direction_that_returns_zeros_is_a_failure_with_what_mends_it() -> None:
    every = list(copies(Through(PAIR, zeros), PAIR, lambda _: None))
    times = [one for one in every if isinstance(one, CopyTime)]
    found = [one for one in every if isinstance(one, Check)]
    assert [time.intact for time in times] == [False, False]
    for check, names in zip(found, ("CPU:0 → CPU:1", "CPU:1 → CPU:0"), strict=True):
        assert check.status == "failure"
        arrived = "zeros arrived in 1 of 1.00 MiB of random data"
        assert check.detail.startswith(f"{names}: {arrived}")
        assert check.next == known_error("copy-differs").remedy


def test_one_wrong_byte_is_told_from_zeros() -> None:
    _, found, *_ = copies(Through(PAIR, one_byte_other), PAIR, lambda _: None)
    assert isinstance(found, Check)
    assert "other data arrived in 0.000244" in found.detail


def test_the_sum_is_compared_on_each_device() -> None:
    from gpubalance.engine import checks

    told = checks.reduce(["CPU:0", "CPU:1", "CPU:2"], NBYTES)
    assert told["differing"] == (0, 0, 0)
    time, good = all_reduce(Through(PAIR, checks.move), PAIR, NBYTES, lambda _: None)
    assert isinstance(time, AllReduceTime)
    assert isinstance(good, Check)
    assert (good.status, time.intact) == ("ok", True)
    assert time.bytes_per_s == pytest.approx(NBYTES / time.seconds)
    # 2(n−1)/n of two devices is 1
    assert time.bus_bytes_per_s == pytest.approx(time.bytes_per_s)
    time, wrong = all_reduce(Through(PAIR, zeros), PAIR, NBYTES, lambda _: None)
    assert isinstance(wrong, Check)
    assert (wrong.status, "CPU:0" in wrong.detail) == ("failure", False)
    assert "CPU:1" in wrong.detail
