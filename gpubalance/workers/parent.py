"""How a worker ends with its parent, however that went."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # here, as a child of a process with threads must look for nothing
_PARENT_ENDS_US_WITHIN_S = 2.0


def end_group_with_parent(requests: int, replies: int) -> None:
    """A process of a few pages that outlives this one: what a user's model has started ends with the parent too.

    It is in the same group, which a parent that lives ends itself, and this process with it.
    """
    if os.fork():
        return
    os.close(replies)  # the parent must see the end of it when this process's other part has died
    hung_up = select.poll()
    hung_up.register(requests, 0)  # nothing is read: only that there is nobody to write any more
    hung_up.poll()
    time.sleep(_PARENT_ENDS_US_WITHIN_S)
    os.killpg(0, signal.SIGKILL)


def die_with_parent() -> None:
    """Linux ends this process with its parent, even where Python can't: TensorFlow may hold the interpreter."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
