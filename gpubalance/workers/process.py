"""A process from the side of whoever started it: start, send, receive within a deadline, end.

It may be on this host, or behind the command that reaches another one: both are started and held by
`agent`, which speaks over its own stdin and stdout.

    parent                          agent
                                    Hello
    Start                      →    Printed … of a script; what a worker says; Ended at last
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpubalance.devices.hosts import check_installed, command_on, other_gpubalance
from gpubalance.errors import EnvironmentFault, PartialResult
from gpubalance.programs import KEEPER
from gpubalance.settings.cluster import Address
from gpubalance.settings.device import Host
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.system.signals import signals_held
from gpubalance.system.state import current_folder, new_log
from gpubalance.workers.agent import installed
from gpubalance.workers.failures import (
    bound,
    died,
    lost,
    not_reached,
    silent,
    unreadable,
)
from gpubalance.workers.lines import LineReader, LineWriter
from gpubalance.workers.messages import AnyReply, from_line, to_line

if TYPE_CHECKING:
    from typing_extensions import Self
_GREETS_WITHIN_S = 60.0  # over a slow ssh and from a slow disk
# Looks without a beat: counted, as a program that was stopped for a while misses both
_LOST_AFTER = 20
_LOOKS_EVERY_S = 1.0
# The agent there, which hears nothing of this side either, ends it within so long from then
_LIVES_ON_S = 15.0
# A killed worker is gone at once, unless the driver has much memory to free: the next one must not
# start before.
_DIES_WITHIN_S = 30.0
_TERMINALS = (
    "leave that option out of --via: -t of ssh, kubectl exec and docker exec, --pty of "
    "srun"
)


class Hello(Record):
    """Where the process may listen for its peers, and on another host what is installed there."""

    address: Address
    installed: dict[str, str | None] | None


class Start(Record):
    """Start a worker, or Python with these words, in that folder if the host has it.

    It has these variables besides; one that is None is taken away.
    """

    environment: dict[str, str | None]
    folder: str
    words: tuple[str, ...] = ()


class Printed(Record):
    """A line that a script has printed, or a TrainingProgress that its split reports."""

    stream: Literal["stdout", "stderr", "report"]
    text: str


class Ended(Record):
    """The exit code; below 0 it is the number of a signal."""

    code: int


FromScript = Printed | Ended


_started: set[Process] = set()


@atexit.register
def _end_all() -> None:
    """Ends processes that were left over because an interrupt came between two lines."""
    for process in list(_started):
        process.end()


class Process:
    """One process. As a context manager it ends, with its group, however the block ends.

    Waiting for one on another host raises EnvironmentFault if the host can't be reached or has
    other software, and PartialResult if it is lost: nothing comes from there any more, not even
    that it lives.
    """

    def __init__(
        self,
        purpose: str,
        host: Host | None,
        limit: TimeLimit = NO_LIMIT,
        *,
        gpus: int = 0,
    ) -> None:
        """Reaches the host. Waits for nothing past the end of `limit`; Ray reserves `gpus` GPUs.

        Raises EnvironmentFault if that can't be begun.
        """
        command = command_on(host, KEEPER, gpus)
        self._host = host if command else None
        self._limit = limit
        self._lines = deque[bytes]()
        self._hello: Hello | None = None
        self._ends_within_s = 0.0  # before it has answered it holds nothing
        self._is_ended = False
        self.has_answered = False
        # Seconds for which the process may live on, after the host was lost
        self.lives_on_s = 0.0
        self.log = new_log(purpose)
        # The process starts in it, and could not report that it is gone
        current_folder()
        try:
            # Appends, as the log may be cut short meanwhile
            with signals_held(), self.log.open("ab") as log:
                self._agent = subprocess.Popen(  # noqa: S603  (no shell; the prefix is the user's own)
                    command or [sys.executable, KEEPER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    # A Ctrl-C in the terminal reaches only the parent, which ends it
                    start_new_session=True,
                )
                assert self._agent.stdin and self._agent.stdout  # noqa: S101,PT018  (pipes)
                self._requests = LineWriter(
                    self._agent.stdin, beats=command is not None
                )
                self._replies = self._agent.stdout
                self._reader = LineReader(self._replies)
                _started.add(self)
        except (OSError, RuntimeError) as error:
            # RuntimeError: there is no room for a thread.
            raise self._not_reached(
                f"can't be run: {getattr(error, 'strerror', error)}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """The agent's process id here, or that of the command that reaches it."""
        return self._agent.pid

    @property
    def lives(self) -> bool:
        """Whether the process has not ended, and was not killed."""
        return not self._is_ended and self._agent.poll() is None

    def start(
        self, environment: Mapping[str, str | None], words: Sequence[str] = ()
    ) -> None:
        """Starts a worker, or Python with these words, in this folder.

        A variable that is None is taken away.
        """
        folder = str(current_folder())
        self.send(
            Start(environment=dict(environment), folder=folder, words=tuple(words))
        )

    def send(self, request: Record) -> None:
        """Sends a request.

        If the process has died or takes nothing in, that is noticed when its reply is read.
        """
        self._requests.put(to_line(request))

    def receive(self, within_s: float, doing: str) -> AnyReply:
        """A worker's next message. The time until its host is reached does not count.

        Raises DeadlinePassed if it says nothing for `within_s` seconds, TimeLimitPassed at the end
        of the command's time, PartialResult if it has died; the messages say that it was `doing`
        this.
        """
        message: AnyReply | Ended = self.message(within_s, doing, AnyReply | Ended)
        if isinstance(message, Ended):
            raise died(doing, message.code, self.log)
        self.has_answered = True
        return message

    def message(self, within_s: float, doing: str, kinds: Any) -> Any:
        """The next message, of one of these `kinds`; Ended too says how the process ended.

        Otherwise like `receive`.
        """
        self.greeted()
        line = self._line(within_s)
        if line is None:
            self._limit.check()
            raise silent(doing, within_s, self.log, has_answered=self.has_answered)
        if not line and self._host:
            raise self._lost(f"the connection {self._how_it_ended()}")
        if not line:
            return Ended(code=self._exit_code() or 0)
        try:
            return from_line(line, kinds)
        except ValueError as error:
            raise unreadable(error, self.log) from None

    def greeted(self) -> Hello:
        """The agent's first message, which may follow what a shell there prints.

        Raises EnvironmentFault.
        """
        until_s = time.monotonic() + _GREETS_WITHIN_S
        while self._hello is None:
            line = self._line(until_s - time.monotonic())
            self._limit.check()
            if not line and self._is_ended:
                raise PartialResult("the worker was stopped before it started")
            if line is None:
                raise self._not_reached(f"did not answer within {_GREETS_WITHIN_S:g} s")
            if not line:
                raise self._not_reached(self._how_it_ended())
            if line.startswith(b'{"Hello":'):
                self._hello = self._checked(line)
                self._ends_within_s = _DIES_WITHIN_S
        return self._hello

    def _checked(self, line: bytes) -> Hello:
        """The message, if the host has the same software as this one."""
        # An agent never sends that; with a terminal it would also read its own words
        if line.endswith(b"\r"):
            raise self._not_reached("makes a terminal there", _TERMINALS)
        try:
            hello: Hello = from_line(line, Hello)
        except ValueError:
            raise other_gpubalance(self._host or "this host") from None
        if self._host:
            check_installed(self._host, hello.installed or {}, installed())
        return hello

    def _line(self, within_s: float) -> bytes | None:
        """The next non-empty line; b"" when the other end is closed, None when the time has passed.

        Raises PartialResult if its host has been silent for too long.
        """
        until_s = time.monotonic() + min(within_s, self._limit.left_s)
        looks = 0
        while not self._lines:
            bound(self.log)
            left_s = until_s - time.monotonic()
            dead = not self.lives
            # Looks even past the deadline: this process itself may have been stopped for a while.
            look_s = 0.0 if dead else max(0.0, min(left_s, _LOOKS_EVERY_S))
            try:
                lines = self._reader.lines(look_s)
            except EOFError:
                return b""
            looks = looks + 1 if lines is None else 0
            if looks > _LOST_AFTER and self._host and self._hello:
                self.lives_on_s = _LIVES_ON_S
                raise self._lost(
                    f"nothing has come from it for {_LOST_AFTER * _LOOKS_EVERY_S:g} s"
                )
            self._lines.extend(filter(None, lines or ()))
            if dead and lines is None:  # what it started may still hold the pipe
                return b""
            if left_s <= 0 and not self._lines:
                return None
        return self._lines.popleft()

    def _lost(self, how: str) -> PartialResult:
        self._ends_within_s = 0.0
        return lost(self._host, how, self.log)

    def _not_reached(self, how: str, remedy: str = "") -> EnvironmentFault:
        return not_reached(self._host, how, self.log, remedy)

    def _how_it_ended(self) -> str:
        code = self._exit_code()
        return "closed its output" if code is None else f"ended with exit code {code}"

    def _exit_code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(2)
        return self._agent.returncode

    def kill(self) -> None:
        """Kills the process and its group, from any thread.

        Whoever waits for its reply hears that it has died.
        """
        self._is_ended = True
        self._requests.close()
        # An agent that was stopped does not notice otherwise
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Kills the process and its group, and waits until they are gone.

        May be called more than once.
        """
        # An interrupt may come at any line: the next call, at the latest the one at the program's
        # end, does all of it again.
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(self._ends_within_s)
        self._signal(signal.SIGKILL)
        self._agent.wait()
        self._replies.close()
        _started.discard(self)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._agent.pid, number)
