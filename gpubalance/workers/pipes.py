"""Pipes. A run over many hosts has thousands, and `select` takes no number above 1023."""

from __future__ import annotations

import contextlib
import os
import resource
import select

_OTHERS = 256  # files that are open anyway, or briefly


def make_room(pipes: int) -> None:
    """Lets this process hold so many ends of pipes, as far as the system allows. The usual limit is enough for 400."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = pipes + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def new_pipe(at_a_failure: contextlib.ExitStack) -> tuple[int, int]:
    """The reading and the writing end of a new pipe, which `at_a_failure` closes."""
    ends = os.pipe()
    for end in ends:
        at_a_failure.callback(os.close, end)
    return ends


def readable(descriptor: int, within_s: float) -> bool:
    """Whether there is something to read, or the end of the pipe."""
    return _is_ready(descriptor, select.POLLIN, within_s)


def writable(descriptor: int, within_s: float) -> bool:
    """Whether at most `select.PIPE_BUF` bytes can be written, or nobody reads any more."""
    return _is_ready(descriptor, select.POLLOUT, within_s)


def _is_ready(descriptor: int, events: int, within_s: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, events)
    return bool(waiting.poll(1000 * max(0.0, within_s)))
