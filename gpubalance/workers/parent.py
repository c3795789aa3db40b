"""Makes a worker end with its parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here, as a child forked from threads must not search for it
_PARENT_ENDS_US_WITHIN_S = 2.0


def end_group_with_parent(requests: int, replies: int) -> None:
    """Forks a tiny process that outlives this one: once the parent is gone, it ends what a user's model has started.

    It belongs to the same group, which a living parent ends itself, and this process with it.
    """
    if os.fork():
        return
    os.close(replies)  # so that the parent sees the pipe close when the other process dies
    hung_up = select.poll()
    hung_up.register(requests, 0)  # reads nothing; it only waits until nobody can write any more
    hung_up.poll()
    time.sleep(_PARENT_ENDS_US_WITHIN_S)
    os.killpg(0, signal.SIGKILL)


def die_with_parent() -> None:
    """Linux ends this process with its parent, even if Python can't: TensorFlow may hold the interpreter."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
