"""A feed that is stopped leaves the user's iterator alone: nothing is inside of it any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from gpubalance.devices.profile import simulated_devices
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.summing import Summing
from tests.late import tf


class Slow(Iterator[Any]):
    """Batches that each take a moment; knows who is inside of it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.is_inside = False
        self.begun = 0

    def __next__(self) -> Any:
        assert not self.is_inside, "asked by two threads"
        self.is_inside = True
        self.begun += 1
        self.entered.set()
        time.sleep(0.3)
        self.is_inside = False
        return tf.zeros((3, 2)), tf.zeros((3, 1))


def test_stop_waits_for_the_batch_that_is_being_made_and_asks_for_no_more() -> None:
    from gpubalance.engine.feed import Feed
    from gpubalance.engine.replicas import replicas_on

    devices, joint = simulated_devices("2")
    names = tuple(device.label for device in devices)
    feed = Feed(replicas_on(devices, names, joint, Summing()), BatchSplit((2, 1)))
    slow = Slow()
    feed.look_ahead(slow, 3)
    assert slow.entered.wait(60)
    feed.stop()
    assert not slow.is_inside
    assert slow.begun == 1
    next(slow)  # as whoever goes on with it does
    _, dealt = feed.take(slow)
    assert dealt.samples == 3
    feed.stop()
