"""A worker on another host, from the controller's side: behind an agent there, with the face of a process here."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

from pydantic import ValidationError

from gpubalance.devices.hosts import command_on, unreachable
from gpubalance.errors import GpubalanceError, PartialResult, UsageError
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.system.state import current_folder
from gpubalance.workers.agent import BEATS_EVERY_S, LISTEN, MARK, SAID, Ended, Hello, Start
from gpubalance.workers.code import code_key
from gpubalance.workers.environment import worker_environment
from gpubalance.workers.messages import AnyReply, Open
from gpubalance.workers.pipes import writable
from gpubalance.workers.process import Process

LOST_S = 4 * BEATS_EVERY_S
ANSWERS_WITHIN_S = 60.0  # over a slow ssh, and from a slow disk
ENDS_WITHIN_S = 10.0


def process_of(devices: Sequence[Device], purpose: str, limit: TimeLimit = NO_LIMIT) -> Process:
    """A worker's process with these devices, which are on one host. Raises EnvironmentFault where it can't start."""
    (host,) = hosts_of(devices)
    command = command_on(host, "gpubalance.workers.agent", gpus=sum(not device.simulated for device in devices))
    if host is None or command is None:
        return Process(purpose, worker_environment(devices), limit)
    return Elsewhere(Start(host=host, devices=tuple(devices), folder=str(current_folder())), command, purpose, limit)


class Elsewhere(Process):
    """A worker's process on another host. What ends the agent's connection ends the worker, and the other way round.

    Whatever waits for its reply raises EnvironmentFault where the host can't be reached or has other software, and
    PartialResult where it is lost: its agent, which says every few seconds that it lives, has stopped saying so.
    """

    def __init__(self, start: Start, command: Sequence[str], purpose: str, limit: TimeLimit = NO_LIMIT) -> None:
        self._host = start.host
        self._command = list(command)
        self._writing = threading.Lock()
        self._met = self._has_ended = self._killed = False
        self._code: int | None = None
        self._heard_s = time.monotonic()
        self._address = ""
        super().__init__(purpose, os.environ, limit)
        super().write(start.model_dump_json().encode())
        _beat_for(self)

    def _popen(
        self, requests: int, replies: int, log: IO[bytes], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(  # noqa: S603  (no shell; the prefix is the user's own)
                self._command, stdin=requests, stdout=replies, stderr=log, env=dict(environment), start_new_session=True
            )
        except FileNotFoundError:
            raise UsageError(f"--via: there is no command {self._command[0]!r}") from None

    @property
    def lives(self) -> bool:
        """Whether neither the worker nor the connection has ended."""
        return not self._has_ended and super().lives

    def send(self, request: Record, within_s: float = ANSWERS_WITHIN_S) -> None:
        """As of a process here. A user's own model must be the same there."""
        if isinstance(request, Open) and request.code is None:
            request = request.model_copy(update={"code": code_key(request.settings.model, request.settings.data)})
        super().send(request, within_s)

    def write(self, line: bytes, within_s: float = ANSWERS_WITHIN_S) -> None:
        """As of a process here."""
        self._meet()
        with self._writing:
            super().write(line, within_s)

    def receive(self, within_s: float, doing: str) -> AnyReply:
        """As of a process here."""
        self._heard_s = time.monotonic()  # its beats were not read meanwhile
        return super().receive(within_s, doing)

    def ask_address(self) -> None:
        """The agent is asked, and `free_address` has its answer: many are asked at the same time."""
        self._meet()
        self._address = ""
        with self._writing:
            self._put(LISTEN)

    def free_address(self) -> str:
        """Where the worker may listen, `host:port`. Raises what `receive` does."""
        doing = "being asked where it may listen"
        self._heard_s = time.monotonic()
        end = time.monotonic() + min(ANSWERS_WITHIN_S, self._limit.left_s)
        while not self._address:
            line = self._any_line(end)
            if line is None:
                raise self._silent(ANSWERS_WITHIN_S, doing)
            if not line or self._has_ended:
                raise self._died(doing)
        return self._address

    def _meet(self) -> None:
        """Waits until the agent has told what is installed there. What else comes before is a shell's greeting."""
        end = time.monotonic() + min(ANSWERS_WITHIN_S, self._limit.left_s)
        while not self._met:
            line = super()._line(end)
            if not line:
                self._limit.check()
                how = f"did not answer within {ANSWERS_WITHIN_S:g} s"
                if line is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(2)
                    how = f"ended with exit code {self._process.returncode}"
                error = unreachable(self._host, how)
                error.log = self.log_tail()
                raise error
            if line.startswith(MARK + b"{"):
                self._take(line.removeprefix(MARK))

    def _line(self, deadline: float) -> bytes | None:
        """The worker's next line."""
        while True:
            line = self._any_line(deadline)
            if not line or not line.startswith(MARK):
                return line
            if self._has_ended:
                return b""

    def _any_line(self, deadline: float) -> bytes | None:
        """The worker's or the agent's next line; the agent's is taken in."""
        line = super()._line(min(deadline, self._heard_s + LOST_S))
        if line is None and time.monotonic() < deadline:
            raise PartialResult(
                f"{self._host} is lost: nothing has come from it for {LOST_S:g} s",
                remedy="is the host up, and its network? --resume goes on with what was measured",
                log=self.log_tail(),
            )
        self._heard_s = time.monotonic()
        if line and line.startswith(MARK) and line != MARK:
            self._take(line.removeprefix(MARK))
        return line

    def _take(self, line: bytes) -> None:
        try:
            said = SAID.validate_json(line)
        except ValidationError as error:
            raise self.unreadable(str(error)) from None
        if isinstance(said, Hello):
            self._met = True
            said.installed.check(self._host)
        elif isinstance(said, Ended):
            self._code = said.code
            self._has_ended = True
        else:
            self._address = said.address

    def _died(self, doing: str) -> GpubalanceError:
        if self._has_ended:
            return super()._died(doing)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        code = self._process.returncode
        how = "closed its output" if code is None else f"ended with exit code {code}"
        return PartialResult(
            f"{self._host} is lost: the connection {how} while {doing}",
            remedy="is the host up, and its network? --resume goes on with what was measured",
            log=self.log_tail(),
        )

    def end(self) -> None:
        """As of a process here. An agent ends when its worker has: a GPU gives its memory back only then."""
        if self._gone:
            return
        _beaten_for.discard(self)
        with self._writing, contextlib.suppress(OSError):
            requests, self._requests = self._requests, -1
            os.close(requests)
        if not self._killed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDS_WITHIN_S)
        super().end()

    def kill(self) -> None:
        """As of a process here: its agent, where that still listens, ends it by force."""
        self._killed = True
        self._signal(signal.SIGTERM)

    def _exit_code(self) -> int | None:
        return self._code

    def beat(self) -> None:
        """Tells the agent that its controller lives, unless it is being told something else."""
        if self._writing.acquire(blocking=False):
            try:
                self._put(MARK)
            finally:
                self._writing.release()

    def _put(self, line: bytes) -> None:
        """A line to the agent, unless it takes nothing in: that is noticed where it is read."""
        with contextlib.suppress(OSError):
            if self._requests >= 0 and writable(self._requests, 0):
                os.write(self._requests, line + b"\n")


_beaten_for: set[Elsewhere] = set()


def _beat_for(one: Elsewhere) -> None:
    """From now on until its end."""
    _beaten_for.add(one)
    _start_beating()


@functools.cache
def _start_beating() -> None:
    """One thread does it for all, as long as this program lives."""
    threading.Thread(target=_beat, daemon=True).start()


def _beat() -> None:
    while True:
        time.sleep(BEATS_EVERY_S)
        for one in list(_beaten_for):
            one.beat()
