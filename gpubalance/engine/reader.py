"""A thread that asks iterators, and for which nobody needs to wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias

from gpubalance.engine import background

_Work: TypeAlias = tuple[Future[Any], Callable[[], Any]]
_Queue: TypeAlias = SimpleQueue[_Work | None]


class Reader:
    """Does one piece of work after another in a thread, which ends when this object is gone.

    A ThreadPoolExecutor's thread would keep the program from ending while a user's generator hangs.
    """

    def __init__(self) -> None:
        self._queue: _Queue = SimpleQueue()
        background.start(_work, self._queue, name="batches")

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Has it done after all before it."""
        future: Future[Any] = Future()
        self._queue.put((future, work))
        return future

    def __del__(self) -> None:
        self._queue.put(None)


def _work(queue: _Queue) -> None:
    while True:
        item = queue.get()
        if item is None:
            return
        future, work = item
        if future.set_running_or_notify_cancel():
            try:
                with background.work():
                    result = work()
            except BaseException as error:  # noqa: BLE001  (whoever waits for it raises it)
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        # While it waits for more it must not keep an iterator alive.
        del item, future, work
