"""Asks other hosts about themselves by running gpubalance there, which prints JSON."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpubalance.devices.hosts import command_on, unreachable
from gpubalance.errors import EnvironmentFault
from gpubalance.settings.device import Host
from gpubalance.text import clean

_ANSWERS_WITHIN_S = 120.0  # loading TensorFlow from a slow disk included
_LONGEST, _CHUNK = 1 << 24, 1 << 16

Answer = dict[str, Any] | EnvironmentFault
_Asked = subprocess.Popen[bytes] | EnvironmentFault


def ask(words: Mapping[Host, Sequence[str]], within_s: float = _ANSWERS_WITHIN_S) -> dict[Host, Answer]:
    """The JSON that `gpubalance` prints on each host with that host's words, or why there is none. All run at once.

    An interrupt ends all of them.
    """
    asked: dict[Host, _Asked] = {}
    end_s = time.monotonic() + within_s
    with ThreadPoolExecutor(len(words)) as threads, _ended(asked):
        asked |= {host: _start(host, said) for host, said in words.items()}
        found = threads.map(lambda host: _answer(host, asked[host], end_s, within_s), asked)
        return dict(zip(asked, found, strict=True))


@contextlib.contextmanager
def _ended(asked: Mapping[Host, _Asked]) -> Iterator[None]:
    """Kills what was started, at the end of the block; that also wakes the threads that wait for answers."""
    try:
        yield
    finally:
        for process in asked.values():
            if not isinstance(process, EnvironmentFault):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _start(host: Host, words: Sequence[str]) -> _Asked:
    command = command_on(host, "gpubalance.__main__", *words)
    assert command is not None  # noqa: S101  (a host is asked after `reach`)
    try:
        return subprocess.Popen(  # noqa: S603  (no shell; the prefix is the user's own)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return unreachable(host, f"can't be run: {error.strerror}")


def _answer(host: Host, process: _Asked, end_s: float, within_s: float) -> Answer:
    if isinstance(process, EnvironmentFault):
        return process
    try:
        out, err = _said(process, end_s)
    except subprocess.TimeoutExpired:
        return unreachable(host, f"did not answer within {within_s:g} s")
    if len(out) + len(err) > _LONGEST:
        return unreachable(host, f"prints {_LONGEST >> 20} MiB and more")
    said, complained = out.decode(errors="replace"), err.decode(errors="replace").splitlines()
    answer = _object_in(said)
    if answer is None:
        own = [line.removeprefix("error: ") for line in complained if line.startswith("error: ")]
        if own:  # the gpubalance there reports an error
            return EnvironmentFault(f"{host}: {clean(own[0], 500)}")
        told = [line for line in [*said.splitlines(), *complained] if line]
        last = f": {clean(told[-1], 200)}" if told else ""
        return unreachable(host, f"ended with exit code {process.returncode}{last}")
    return answer


def _said(process: subprocess.Popen[bytes], end_s: float) -> tuple[bytes, bytes]:
    """All of its stdout and stderr once it has ended, or a little more than `_LONGEST` bytes. Raises TimeoutExpired."""
    assert process.stdout and process.stderr  # noqa: S101,PT018  (pipes)
    said = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as waiting:
        for pipe in said:
            waiting.register(pipe, selectors.EVENT_READ)
        while waiting.get_map() and sum(map(len, said.values())) <= _LONGEST:
            ready = waiting.select(max(0.0, end_s - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(process.args, 0)
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                said[key.fd] += chunk
                if not chunk:
                    waiting.unregister(key.fd)
        if not waiting.get_map():
            process.wait(max(0.0, end_s - time.monotonic()))
    out, err = said.values()
    return bytes(out), bytes(err)


def _object_in(said: str) -> dict[str, Any] | None:
    """The longest JSON object in the text, as a shell there may print greetings around it, with braces too."""
    found, longest, start = None, 2, said.find("{")  # more than `{}`
    while start >= 0:
        end = start + 1
        with contextlib.suppress(ValueError, RecursionError):
            one, end = json.JSONDecoder().raw_decode(said, start)
            if end - start > longest:
                found, longest = one, end - start
        start = said.find("{", end)
    return found
