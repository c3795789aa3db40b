"""Runs the program's own main() in this process.

A stand-in takes the place of the workers' interpreter.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpubalance.devices.hosts import connect_hosts
from gpubalance.workers.messages import to_line
from gpubalance.workers.process import Hello

HANGS_AFTER_S = 240  # a busy machine may stand still for a minute
_AGAIN_S = 1
# What a terminal acts on. Tabs and line ends are not escapes.
ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Hang(BaseException):
    """The program ran for longer than anything here may.

    It is not an Exception, which the program could catch.
    """


class Done(NamedTuple):
    """How a call of the program ended."""

    code: int
    out: str
    err: str

    def check(self, *arguments: str) -> None:
        """Raises AssertionError for an end that no input may cause."""
        words = " ".join(map(repr, arguments))
        told = f"gpubalance {words}: exit code {self.code}\n{self.err[-3000:]}"
        assert self.code != 1, told
        assert "--verbose" in arguments or "Traceback" not in self.err + self.out, told
        assert not ESCAPE.search(self.err), f"an escape on stderr: {told}"
        asks_help = {"--help", "-h", "--version"} & set(arguments)
        if self.code == 0 and "--json" in arguments and not asks_help:
            json.loads(self.out)
        else:
            escape = f"an escape on stdout: {told}\n{self.out!r}"
            assert not ESCAPE.search(self.out), escape
        if self.code not in (0, 130, 143) and self.err:
            assert "error: " in self.err, told


Program = Callable[[Sequence[str]], Done]


@contextlib.contextmanager
def apart(folder: Path, worker: str = "exit 0") -> Iterator[None]:
    """Puts home, state and current folder into `folder`.

    A worker greets, and then runs this shell script.
    """
    stand_in = folder / "python"
    hello = to_line(Hello(address="127.0.0.1:1", installed=None)).decode()
    stand_in.write_text(f"#!/bin/sh\necho '{hello}'\n{worker}\n")
    stand_in.chmod(0o755)
    executable = sys.executable
    variables = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    with placed(folder, variables | {"TERM": "dumb"}):
        sys.executable = str(stand_in)
        try:
            yield
        finally:
            sys.executable = executable


@contextlib.contextmanager
def placed(folder: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """Sets the current folder and variables, and undoes what a program changes in this process."""
    before = dict(os.environ)
    cwd = Path.cwd()
    ends = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in ends}
    os.environ.update(COLUMNS="80", **variables)
    os.chdir(folder)
    try:
        yield
    finally:
        connect_hosts(None, None)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _hangs(number: int, frame: object) -> None:
    del number, frame
    raise Hang


@contextlib.contextmanager
def within_time(seconds: float = HANGS_AFTER_S) -> Iterator[None]:
    """Raises Hang if the block does not end, repeatedly, as a callback of Python's may swallow one.

    The process has one timer. Another one, such as a test's own limit, pauses inside and goes on
    afterwards.
    """
    handler = signal.signal(signal.SIGALRM, _hangs)
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    began = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            left -= time.monotonic() - began
            signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), every)


def program(arguments: Sequence[str]) -> Done:
    """Runs `gpubalance ARGUMENTS` by main(). Call it inside `placed`."""
    from gpubalance.cli.app import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    before = sys.argv
    sys.argv = ["gpubalance", *arguments]
    of_out = contextlib.redirect_stdout(out)
    try:
        with within_time(), of_out, contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.argv = before
    return Done(code, out.getvalue(), err.getvalue())
