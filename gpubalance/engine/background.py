"""Threads for work that may hang: a program that ends waits a second for those in TensorFlow."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# A user's generator may hang, and tf.data keeps whoever drops an iterator up to a minute.
_WAITED_AT_EXIT_S = 1.0

_changed = threading.Condition()
_at_work = 0
_kept: list[Any] = []  # what is not safe to drop any more
_ending = False


def start(function: Callable[..., Any], *args: Any, name: str) -> None:
    """Calls the function in a thread that does not keep the program from ending.

    Once it ends nothing is called.
    """
    thread = threading.Thread(target=function, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python starts none at its end, since 3.12
        _kept.append(args)


@contextmanager
def work() -> Iterator[None]:
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
