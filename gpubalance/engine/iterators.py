"""Iterators of datasets and generators, each asked by one thread; nobody waits for them."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import keras
import tensorflow as tf

from gpubalance.engine.user_functions import users_line

# A user's generator may hang, and tf.data keeps whoever drops an iterator up to a minute.
_WAITED_AT_EXIT_S = 1.0

_changed = threading.Condition()
_at_work = 0
_kept: list[Any] = []  # what is not safe to drop any more
_ending = False


def start_thread(function: Callable[..., Any], *args: Any, name: str) -> None:
    """Calls the function in a thread that does not keep the program from ending.

    Once it ends nothing is called.
    """
    thread = threading.Thread(target=function, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python starts none at its end, since 3.12
        _kept.append(args)


@contextmanager
def using_tensorflow() -> Iterator[None]:
    """What is done in the block uses TensorFlow; it does not begin once the program ends.

    Before version 3.14 Python ends such a thread where it next needs the interpreter. Within a
    function that TensorFlow traces or drops, this aborts the whole program ("FATAL: exception not
    rethrown") though its work is done.
    """
    global _at_work
    with _changed:
        begins = not _ending
        _at_work += begins
    if not begins:
        threading.Event().wait()  # for ever: Python ends meanwhile
    try:
        yield
    finally:
        with _changed:
            _at_work -= 1
            _changed.notify_all()


@atexit.register
def _end() -> None:
    global _ending
    with _changed:
        _ending = True
        _changed.wait_for(lambda: not _at_work, _WAITED_AT_EXIT_S)


# Each in a list, so that the thread that empties it drops the iterator, whoever else has the list.
_over: SimpleQueue[list[Any]] = SimpleQueue()
# After this long a call that waits for another one's batch says so.
_SILENT_S = 2.0
_STILL_ASKED = (
    "the generator is still producing a batch for an earlier call, and this call waits "
    "for it; a new generator would not have to wait"
)


class Batches(Iterator[Any]):
    """What `iter(dataset)` gives. When it is no longer needed, another thread drops the iterator.

    Whoever drops one waits for tf.data's autotuning thread, which sleeps for as long as the
    iterator has lived, a minute at most, and in every other case wakes too early to see that it
    should end (TensorFlow's Model::OptimizeLoop looks for what is only set after it has been
    woken).
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        _start_dropping()
        self._held: list[Any] = []
        self._held.append(iter(dataset))

    def __next__(self) -> Any:
        return next(self._held[0])

    def __del__(self, drop: Callable[[list[Any]], None] = _over.put) -> None:
        drop(self._held)


@cache
def _start_dropping() -> None:
    start_thread(_drop_all, _over, name="drops iterators")


def _drop_all(over: SimpleQueue[list[Any]]) -> None:
    # Each in a thread of its own: whoever drops one also waits for the batch that is being made,
    # for ever if the user's code hangs.
    while True:
        start_thread(_drop, over.get(), name="drops an iterator")


def _drop(held: list[Any]) -> None:
    with using_tensorflow():
        held.clear()


class GeneratorFailedError(Exception):
    """A user's generator has raised `error`. (Keras takes the `__cause__` away.)"""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Turn:
    """Whose turn it is to ask a generator: Python raises an error if two threads ask it at once."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator  # so that no other one gets its id
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, *, warns: bool = False) -> Iterator[None]:
        """Waits until no thread asks the generator; in the block others wait for this one.

        If that takes long it `warns`.
        """
        if not self._lock.acquire(timeout=_SILENT_S if warns else -1):
            warnings.warn_explicit(_STILL_ASKED, UserWarning, *users_line())
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()


# By the generators' ids. A thread that asks a generator holds its turn.
_turns: WeakValueDictionary[int, Turn] = WeakValueDictionary()
_looking = threading.Lock()


def turn_of(generator: Any) -> Turn:
    """The turn of a generator, the same in all calls that get it."""
    with _looking:
        turn = _turns.get(id(generator))
        if turn is None:
            turn = Turn(generator)
            _turns[id(generator)] = turn
    return turn


class GeneratorBatches(Iterator[Any]):
    """The batches of a generator, each made when it is asked for, in the thread that asks.

    A tf.data.Dataset would ask in a thread of its own, and whoever drops its iterator waits for the
    batch that is being made. Raises GeneratorFailedError for what the generator raises.
    """

    def __init__(self, batches: Iterator[Any], signature: Any, turn: Turn) -> None:
        self._batches = batches
        self._signature = signature
        self._turn = turn

    def __next__(self) -> Any:
        with self._turn.taken():
            try:
                batch = next(self._batches)
            except StopIteration:
                raise
            except Exception as error:
                raise GeneratorFailedError(error) from error
        with tf.device("/CPU:0"):
            return keras.tree.map_structure(_as_tensor, batch, self._signature)


class ReadAhead(Iterator[Any]):
    """An iterator whose next item is made in a thread while the last one is used."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._reader = Reader()
        self._next: Future[Any] | None = None

    def __next__(self) -> Any:
        made = self._next or self._ask()
        item = made.result()
        self._next = self._ask()
        return item

    def _ask(self) -> Future[Any]:
        return self._reader.submit(partial(next, self._items))


def _as_tensor(part: Any, spec: Any) -> Any:
    """A part as Keras hands it on: of the first batch's dtype, and none as an empty Optional."""
    if part is None:
        return tf.experimental.Optional.empty(None)
    if isinstance(spec, tf.TensorSpec):
        return tf.convert_to_tensor(part, spec.dtype)
    return part


_Work: TypeAlias = tuple[Future[Any], Callable[[], Any]]
_Queue: TypeAlias = SimpleQueue[_Work | None]


class Reader:
    """Does one piece of work after another in a thread, which ends when this object is gone.

    A ThreadPoolExecutor's thread would keep the program from ending while a user's generator hangs.
    """

    def __init__(self) -> None:
        self._queue: _Queue = SimpleQueue()
        start_thread(_work, self._queue, name="batches")

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
                with using_tensorflow():
                    result = work()
            except BaseException as error:  # noqa: BLE001  (whoever waits for it raises it)
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        # While it waits for more it must not keep an iterator alive.
        del item, future, work
