"""A process from the side of whoever started it: start, send, receive within a deadline, end.

The process is on this host, or on another one, which a command such as ssh reaches. In both cases
an agent (workers/agent.py) starts the process and ends it. The agent speaks over its own stdin and
stdout:

    parent                              agent
                                        Hello
    Start                          →
    requests to a worker, or
    signals to a script            →    Printed by a script, or a worker's replies
                                        Ended
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
from gpubalance.programs import AGENT
from gpubalance.settings.cluster import Address
from gpubalance.settings.device import Host
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit, signals_held
from gpubalance.system.state import current_folder, new_log
from gpubalance.workers.agent import installed
from gpubalance.workers.failures import (
    died,
    empty_if_too_long,
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
_POLL_S = 1.0
# A host is lost after more than this many polls in a row without a byte, not even a heartbeat.
# Polls are counted, not seconds: if this process was stopped for a while, beats wait in the pipe.
_LOST_AFTER_POLLS = 20
# The agent on a lost host hears nothing from here either, and kills its worker at most this long
# after the loss is noticed here.
_LIVES_ON_S = 15.0
# `end` waits this long for a killed worker: the driver may have much memory to free, and the next
# worker must not start before.
_DIES_WITHIN_S = 30.0
# And this long for an agent that was asked to start nothing: its host may no longer answer.
_LEAVES_WITHIN_S = 5.0
_TERMINAL_REMEDY = (
    "leave that option out of --via: -t of ssh, kubectl exec and docker exec, --pty of "
    "srun"
)


class Hello(Record):
    """The agent's first message: where the process may listen for its peers."""

    address: Address
    installed: dict[str, str | None] | None  # versions, by package; None on this host


class Start(Record):
    """Start Python with these words, a script and its arguments; without words, start a worker.

    `environment` is added to the agent's own; None unsets a variable. The process starts in
    `folder`, if the host has such a folder.
    """

    environment: dict[str, str | None]
    folder: str
    words: tuple[str, ...] = ()


class Printed(Record):
    """A line that a script has printed, or a TrainingProgress that its split reports."""

    stream: Literal["stdout", "stderr", "report"]
    text: str


class Ended(Record):
    """The agent's last message: the process has ended."""

    code: int  # the exit code; -N if signal N ended it


FromScript = Printed | Ended


_started: set[Process] = set()


@atexit.register
def _end_all() -> None:
    """Ends the processes that are left because an interrupt came before their `end` was done."""
    for process in list(_started):
        process.end()


class Process:
    """One process, on this host or another. A `with` block ends the process and its group.

    Waiting for a process on another host raises EnvironmentFault if the host can't be reached or
    has other software, and PartialResult if the host is lost: no message and no heartbeat comes.
    """

    def __init__(
        self,
        purpose: str,
        host: Host | None,
        limit: TimeLimit = NO_LIMIT,
        *,
        gpus: int = 0,
    ) -> None:
        """Starts the agent on `host`, or here if that is None; Ray reserves `gpus` GPUs for it.

        `purpose` is part of the log's name. No wait lasts longer than the command's time `limit`.
        Raises EnvironmentFault if the agent, or the command that reaches the host, can't be run.
        """
        command = command_on(host, AGENT, gpus)
        # Without a command `host` is only simulated: the process is on this one
        self._host = None if command is None else host
        self._limit = limit
        self._lines = deque[bytes]()
        self._hello: Hello | None = None
        # How long `end` waits before it sends KILL, once the agent has sent its Hello: before that
        # it has started nothing.
        self._kill_after_s = _LEAVES_WITHIN_S
        self._exit_requested = False
        self.worker_has_answered = False
        # How long the process may live on after its host was lost: jobs/launch.py waits for that
        self.lives_on_s = 0.0
        self.log = new_log(purpose)
        # Raises if the folder was deleted: an agent would start in it, and could not report that.
        current_folder()
        try:
            # Appends, as the log may be emptied meanwhile
            with signals_held(), self.log.open("ab") as log:
                self._agent = subprocess.Popen(  # noqa: S603  (no shell; the prefix is the user's own)
                    command or [sys.executable, AGENT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    # A Ctrl-C in the terminal reaches only this process, which ends the agent
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
        """The process id of the agent here, or of the command that reaches it."""
        return self._agent.pid

    @property
    def lives(self) -> bool:
        """Whether the agent or its command still runs, and nobody has requested the exit."""
        return not self._exit_requested and self._agent.poll() is None

    def start(
        self, environment: Mapping[str, str | None], words: Sequence[str] = ()
    ) -> None:
        """Starts a worker, or Python with these words, in the current folder: see `Start`."""
        folder = str(current_folder())
        self._kill_after_s = _DIES_WITHIN_S
        self.send(
            Start(environment=dict(environment), folder=folder, words=tuple(words))
        )

    def send(self, request: Record) -> None:
        """Sends a request.

        A process that has died or reads no requests is noticed only when its reply is awaited.
        """
        self._requests.put(to_line(request))

    def receive(self, timeout_s: float, doing: str) -> AnyReply:
        """A worker's next message. The time until its host is reached does not count.

        Raises DeadlinePassed if the worker says nothing for `timeout_s`, TimeLimitPassed at the end
        of the command's time, and PartialResult if the worker has died. Their messages say what
        the worker was `doing`.
        """
        message: AnyReply | Ended = self.message(timeout_s, doing, AnyReply | Ended)
        if isinstance(message, Ended):
            raise died(doing, message.code, self.log)
        self.worker_has_answered = True
        return message

    def message(self, timeout_s: float, doing: str, kinds: Any) -> Any:
        """The next message, a record of the union `kinds`.

        If the process has died, this returns Ended, where `receive` raises. If its host is lost,
        both raise PartialResult.
        """
        self.greeted()
        try:
            line = self._line(timeout_s)
        except TimeoutError:
            self._limit.check()
            raise silent(
                doing, timeout_s, self.log, has_answered=self.worker_has_answered
            ) from None
        except EOFError:
            if self._host:
                raise self._lost(f"the connection {self._how_it_ended()}") from None
            # The agent was killed before it could report how the process ended. Its own exit code
            # counts then, or 0 if that is not known either.
            return Ended(code=self._exit_code() or 0)
        try:
            return from_line(line, kinds)
        except ValueError as error:
            raise unreadable(error, self.log) from None

    def greeted(self) -> Hello:
        """The agent's Hello, waited for at the first call. Lines that a shell prints are skipped.

        Raises EnvironmentFault if no Hello comes, PartialResult if another thread has requested the
        exit, and TimeLimitPassed.
        """
        until_s = time.monotonic() + _GREETS_WITHIN_S
        while self._hello is None:
            try:
                line = self._line(until_s - time.monotonic())
            except TimeoutError:
                self._raise_if_stopped()
                how = f"did not answer within {_GREETS_WITHIN_S:g} s"
                raise self._not_reached(how) from None
            except EOFError:
                self._raise_if_stopped()
                raise self._not_reached(self._how_it_ended()) from None
            self._limit.check()
            if line.startswith(b'{"Hello":'):
                self._hello = self._checked(line)
        return self._hello

    def _raise_if_stopped(self) -> None:
        """Raises if the command's time is over, or this side has requested the exit."""
        self._limit.check()
        if self._exit_requested:
            raise PartialResult("the worker was stopped before it started")

    def _checked(self, line: bytes) -> Hello:
        """The Hello in this line. Raises EnvironmentFault if the host has other software."""
        # Only a terminal ends lines with \r. A terminal would also echo our requests as replies.
        if line.endswith(b"\r"):
            raise self._not_reached("makes a terminal there", _TERMINAL_REMEDY)
        try:
            hello: Hello = from_line(line, Hello)
        except ValueError:
            raise other_gpubalance(self._host or "this host") from None
        if self._host:
            check_installed(self._host, hello.installed or {}, installed())
        return hello

    def _line(self, timeout_s: float) -> bytes:
        """The next line that is not empty.

        If none is waiting, the pipe is polled for up to 1 s at a time. After each poll the first of
        these decides:
        1. the pipe has ended: EOFError, from the reader;
        2. the agent is on another host and has sent its Hello, but over 20 polls in a row got
           nothing: PartialResult;
        3. a line has come: it is returned, whatever else holds;
        4. the agent has ended or its exit was requested, and the pipe is empty: EOFError;
        5. `timeout_s` or the command's time is over: TimeoutError.
        """
        until_s = time.monotonic() + min(timeout_s, self._limit.left_s)
        silent_polls = 0
        while not self._lines:
            empty_if_too_long(self.log)
            left_s = until_s - time.monotonic()
            # Asked before the poll, which then gets what the agent wrote last
            is_dead = not self.lives
            # Polls once even past the deadline: this process may have been stopped for a while.
            poll_s = 0.0 if is_dead else max(0.0, min(left_s, _POLL_S))
            # None if no byte has come, empty if only a heartbeat or part of a line
            lines = self._reader.lines(poll_s)
            silent_polls = silent_polls + 1 if lines is None else 0
            if silent_polls > _LOST_AFTER_POLLS and self._host and self._hello:
                self.lives_on_s = _LIVES_ON_S
                raise self._lost(
                    f"nothing has come from it for {_LOST_AFTER_POLLS * _POLL_S:g} s"
                )
            self._lines.extend(filter(None, lines or ()))
            if is_dead and lines is None:
                # The pipe itself may never end: programs that the process started may hold it open.
                raise EOFError
            if left_s <= 0 and not self._lines:
                raise TimeoutError
        return self._lines.popleft()

    def _lost(self, how: str) -> PartialResult:
        self._kill_after_s = 0.0  # the agent there can't be waited for
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

    def request_exit(self) -> None:
        """Has the agent kill the process and its group, and does not wait for their end.

        Any thread may call this. Another thread that waits for a reply learns that the process has
        died, as in `message`.
        """
        self._exit_requested = True
        # Closes the agent's stdin after the last request. The agent then kills what it has started.
        self._requests.close()
        # A stopped agent (SIGSTOP) would not notice
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Requests the exit, and waits until the process and its group are gone.

        An agent that takes too long is killed. May be called more than once.
        """
        # An interrupt may come at any line. The next call does everything again, at the latest
        # `_end_all` when the program ends.
        self.request_exit()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(self._kill_after_s if self._hello else 0.0)
        # A process on this host dies with its agent: Linux sends it KILL.
        self._signal(signal.SIGKILL)
        self._agent.wait()
        self._replies.close()
        _started.discard(self)

    def _signal(self, number: signal.Signals) -> None:
        """Signals the agent here, or the command that reaches it, with its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._agent.pid, number)
