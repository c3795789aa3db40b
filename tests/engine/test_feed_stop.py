"""A feed that is stopped leaves the user's iterator alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from gpubalance.settings.batch_split import BatchSplit
from tests.engine.steps import plain_replicas
from tests.support.late import tf


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
        time.sleep(1)
        self.is_inside = False
        return tf.zeros((3, 2)), tf.zeros((3, 1))


def test_a_stopped_feed_drops_what_comes_late_and_asks_for_no_more() -> None:
    """It waits for no iterator. Whoever uses it next waits for what is still asked of it."""
    from gpubalance.engine.feed import Feed

    feed = Feed(plain_replicas(2), BatchSplit((2, 1)))
    slow = Slow()
    feed.look_ahead(slow, 3)
    assert slow.entered.wait(60)
    asked = feed.stop()
    assert slow.is_inside
    assert [late.result() for late in asked] == [None]
    assert slow.begun == 1
    _, dispatched = feed.take(slow)
    assert dispatched.samples == 3
    feed.stop()
