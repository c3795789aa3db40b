"""A process from the side of whoever started it: start, send, receive within a deadline, end.

It may be on this host, or behind the command that reaches another one: both are started and held by `keeper`, which
speaks over its own stdin and stdout.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from pydantic import ValidationError

from gpubalance.devices.hosts import check_installed, command_on, other_gpubalance, unreachable
from gpubalance.errors import DeadlinePassed, EnvironmentFault, PartialResult
from gpubalance.remedies import known, match_log
from gpubalance.settings.device import Host
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.system.state import current_folder, new_log
from gpubalance.text import clean
from gpubalance.workers import keeper
from gpubalance.workers.log import bound, tail
from gpubalance.workers.messages import MESSAGE, AnyReply, Ended, Hello, Message, Printed, Start
from gpubalance.workers.signals import signals_held

if TYPE_CHECKING:
    from typing_extensions import Self

_LONGEST_MESSAGE = 1 << 24
_TAKES_WITHIN_S = 60.0  # a keeper reads at once, unless it is stopped or the connection hangs
_GREETS_WITHIN_S = 60.0  # over a slow ssh and from a slow disk
_LOST_AFTER = 20  # looks without a beat: counted, as a program that was stopped for a while misses both
_LOOKS_EVERY_S = 1.0
# A killed worker is gone at once, unless the driver has much memory to free: the next one must not start before.
_DIES_WITHIN_S = 30.0
_LONGEST_GREETING = 1 << 20
# A message may arrive this long after the deadline, and must then end a line, or the wait would have no end.
_LATE_S = 5.0
_STARTING = "TensorFlow is still being loaded, or the function that builds the model does not return"
_LACKS = "free what it lacks: memory, disk, processes (ulimit -u) or open files (ulimit -n)"
_LONGER = "give it longer: --deadline SECONDS"
_TERMINALS = "leave that option out of --via: -t of ssh, kubectl exec and docker exec, --pty of srun"
_HELLO = b'{"kind":"hello"'

_started: set[Process] = set()


@atexit.register
def _end_all() -> None:
    """Ends processes that were left over because an interrupt came between two lines."""
    for process in list(_started):
        process.end()


class Process:
    """One process. Use it as a context manager: however the block ends, the process and its group end with it.

    Waiting for it raises, for one on another host, EnvironmentFault if the host can't be reached or has other software,
    and PartialResult if it is lost: nothing comes from there any more, not even that it lives.
    """

    def __init__(self, purpose: str, host: Host | None, limit: TimeLimit = NO_LIMIT, *, gpus: int = 0) -> None:
        """Reaches the host. Waits for nothing past the end of `limit`; Ray reserves `gpus` GPUs.

        Raises EnvironmentFault if that can't be begun.
        """
        command = command_on(host, keeper.__file__, gpus)
        self._host = host if command else None
        self._limit = limit
        self._lines, self._rest = deque[bytes](), b""
        self._hello: Hello | None = None
        self._ends_within_s = 0.0  # before it has answered it holds nothing
        self._is_ended = threading.Event()
        self._writing = threading.Lock()
        self.has_answered = False
        self.log = new_log(purpose)
        current_folder()  # the process starts in it, and could not report that it is gone
        pipe = subprocess.PIPE
        try:
            with signals_held(), self.log.open("ab") as log:  # appends, as the log may be cut short meanwhile
                self._keeper = subprocess.Popen(  # noqa: S603  (no shell; the prefix is the user's own)
                    command or [sys.executable, keeper.__file__],
                    stdin=pipe,
                    stdout=pipe,
                    stderr=log,
                    bufsize=0,
                    start_new_session=True,  # a Ctrl-C in the terminal reaches only the parent, which ends it
                )
                assert self._keeper.stdin and self._keeper.stdout  # noqa: S101,PT018  (pipes)
                self._requests, self._replies = self._keeper.stdin, self._keeper.stdout
                self._into = self._requests.fileno()
                os.set_blocking(self._into, False)
                _started.add(self)
        except OSError as error:
            if self._host:
                raise self._unreachable(f"can't be run: {error.strerror}") from None
            raise EnvironmentFault(f"can't start a worker: {error.strerror}", remedy=_LACKS) from None
        if self._host:
            threading.Thread(target=self._beat, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """The keeper's process id here, or that of the command that reaches it."""
        return self._keeper.pid

    @property
    def lives(self) -> bool:
        """Whether the process has not ended, and was not killed."""
        return not self._is_ended.is_set() and self._keeper.poll() is None

    @property
    def address(self) -> str:
        """Where the process may listen for its peers. Raises what `receive` does."""
        return self.greeted().address

    def start(self, environment: Mapping[str, str | None], words: Sequence[str] = ()) -> None:
        """Starts a worker, or Python with these words, in this folder; None takes a variable away."""
        folder = str(current_folder())
        self.send(Start(environment=dict(environment), folder=folder, words=tuple(words)))

    def send(self, request: Record, within_s: float = _TAKES_WITHIN_S) -> None:
        """Sends a request. If the process has died, that is noticed when its reply is read.

        Raises DeadlinePassed if it takes nothing in for `within_s` seconds.
        """
        self.write(request.model_dump_json().encode(), within_s)

    def write(self, line: bytes, within_s: float = _TAKES_WITHIN_S) -> None:
        """Sends a request that is already a line; otherwise like `send`."""
        rest = memoryview(line + b"\n")
        until_s = time.monotonic() + min(within_s, self._limit.left_s)
        while rest:
            written = self._put(rest)
            rest = rest[written:]
            if not written and not _is_ready(self._into, select.POLLOUT, until_s - time.monotonic()):
                raise self._silent(within_s, "being asked")

    def _put(self, part: memoryview | bytes) -> int:
        """Writes what there is room for, without waiting; returns how much that is: all, if nobody reads any more."""
        with self._writing:
            try:
                return self._requests.write(part) or 0
            except (BrokenPipeError, ValueError):  # it has ended, or `end` was called
                return len(part)

    def _beat(self) -> None:
        while not self._is_ended.wait(keeper.BEATS_EVERY_S):
            self._put(keeper.BEAT)

    def receive(self, within_s: float, doing: str) -> AnyReply:
        """A worker's next message. The time until its host is reached does not count.

        Raises DeadlinePassed if it says nothing for `within_s` seconds, TimeLimitPassed at the end of the command's
        time, PartialResult if it has died; the messages say that it was `doing` this.
        """
        message = self.message(within_s, doing)
        if isinstance(message, Printed):
            raise self.unreadable("no worker prints that way")
        if isinstance(message, Ended):
            raise self._died(doing, message.code)
        self.has_answered = True
        return message

    def message(self, within_s: float, doing: str) -> Message:
        """The next message, or how the process ended. Otherwise like `receive`."""
        self.greeted()
        line = self._line(within_s)
        if line is None:
            raise self._silent(within_s, doing)
        if not line and self._host:
            raise self._lost(f"the connection {self._how_it_ended()}")
        try:
            return MESSAGE.validate_json(line) if line else Ended(code=self._exit_code() or 0)
        except ValidationError as error:
            raise self.unreadable(str(error)) from None

    def unreadable(self, why: str) -> PartialResult:
        """The error for a message that can't be read."""
        return PartialResult(f"the worker's message is not readable: {clean(why)}", log=self.log_tail())

    def _silent(self, within_s: float, doing: str) -> DeadlinePassed:
        self._limit.check()
        return DeadlinePassed(
            f"the worker said nothing for {within_s:g} s while {doing}",
            cause=known("silent").cause if self.has_answered else _STARTING,
            remedy=f"{known('silent').remedy if self.has_answered else _LONGER}\nits log is {self.log}",
            log=self.log_tail(),
        )

    def greeted(self) -> Hello:
        """The keeper's first message, which may follow what a shell there prints. Raises EnvironmentFault."""
        printed, until_s = 0, time.monotonic() + _GREETS_WITHIN_S
        while self._hello is None:
            line = self._line(until_s - time.monotonic())
            self._limit.check()
            if not line and self._is_ended.is_set():
                raise PartialResult("the worker was ended before it began")
            if not line:
                how = f"did not answer within {_GREETS_WITHIN_S:g} s" if line is None else self._how_it_ended()
                raise self._unreachable(how)
            printed += len(line)
            if printed > _LONGEST_GREETING:
                raise self._unreachable(f"prints {_LONGEST_GREETING >> 20} MiB and more")
            if line.startswith(_HELLO):
                self._hello = self._checked(line)
                self._ends_within_s = _DIES_WITHIN_S
        return self._hello

    def _checked(self, line: bytes) -> Hello:
        """The message, if the host has the same software as this one."""
        if line.endswith(b"\r"):  # a keeper never sends that; with a terminal it would also read its own words
            raise self._unreachable("makes a terminal there", _TERMINALS)
        try:
            hello = Hello.model_validate_json(line)
        except ValidationError:
            raise other_gpubalance(self._host or "this host") from None
        if self._host:
            check_installed(self._host, hello.installed or {}, keeper.installed())
        return hello

    def _line(self, within_s: float) -> bytes | None:
        """The next non-empty line; b"" when the other end is closed, None when the time has passed.

        Raises PartialResult if its host has been silent for too long.
        """
        deadline, looks = time.monotonic() + min(within_s, self._limit.left_s), 0
        while not self._lines:
            bound(self.log)
            left = deadline - time.monotonic()
            # Reads even past the deadline: this process itself may have been stopped for a while.
            chunk = self._chunk(max(0.0, min(left, _LOOKS_EVERY_S)))
            looks = looks + 1 if chunk is None else 0
            if looks > _LOST_AFTER and self._host and self._hello:
                raise self._lost(f"nothing has come from it for {_LOST_AFTER * _LOOKS_EVERY_S:g} s")
            if chunk is None and left <= 0:
                return None
            if chunk == b"" or len(self._rest) > _LONGEST_MESSAGE:
                return b""
            *lines, self._rest = (self._rest + (chunk or b"").replace(keeper.BEAT, b"")).split(b"\n")
            self._lines.extend(filter(None, lines))
            if left < -_LATE_S and not self._lines:
                return None
        return self._lines.popleft()

    def _chunk(self, within_s: float) -> bytes | None:
        """What has come meanwhile; b"" at its end, None for nothing."""
        dead = not self.lives
        if _is_ready(self._replies.fileno(), select.POLLIN, 0.0 if dead else within_s):
            return self._replies.read(1 << 16)
        return b"" if dead else None  # what it started may still hold the pipe

    def _died(self, doing: str, code: int) -> PartialResult:
        log = self.log_tail()
        row = match_log(log)
        how = f"was ended by {_name(-code)}" if code < 0 else f"ended with exit code {code}"
        if -code == signal.SIGKILL:
            how += ", probably as the host's memory ran out"
            row = row or known("host-memory")
        return PartialResult(
            f"the worker {how} while {doing}",
            cause=row.cause if row else "",
            remedy="\n".join([*([row.remedy] if row else []), f"its whole log is {self.log}"]),
            log=log,
        )

    def _lost(self, how: str) -> PartialResult:
        self._ends_within_s = 0.0
        remedy = "is the host up, and its network? --resume goes on with what was measured"
        return PartialResult(f"{self._host} is lost: {how}", remedy=remedy, log=self.log_tail())

    def _unreachable(self, how: str, remedy: str = "") -> EnvironmentFault:
        here = EnvironmentFault(f"can't start a worker: its process {how}", remedy=_LACKS)
        error = unreachable(self._host, how, remedy) if self._host else here
        error.log = self.log_tail()
        return error

    def _how_it_ended(self) -> str:
        if len(self._rest) > _LONGEST_MESSAGE:
            return f"prints a line of {_LONGEST_MESSAGE >> 20} MiB and more"
        code = self._exit_code()
        return "closed its output" if code is None else f"ended with exit code {code}"

    def _exit_code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(2)
        return self._keeper.returncode

    def log_tail(self) -> str:
        """The last lines of the log."""
        return tail(self.log)

    def kill(self) -> None:
        """Kills the process and its group, from any thread: whoever waits for its reply hears that it has died."""
        self._is_ended.set()
        with self._writing:
            self._requests.close()
        self._signal(signal.SIGCONT)  # a keeper that was stopped does not notice otherwise

    def end(self) -> None:
        """Kills the process and its group, and waits until they are gone. May be called more than once."""
        # An interrupt may come at any line: the next call, at the latest the one at the program's end, does all of it
        # again.
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(self._ends_within_s)
        self._signal(signal.SIGKILL)
        self._keeper.wait()
        self._replies.close()
        _started.discard(self)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._keeper.pid, number)


def _is_ready(descriptor: int, events: int, within_s: float) -> bool:
    """Whether there is something to read, or room to write, or the end of the pipe. `select` takes no high number."""
    waiting = select.poll()
    waiting.register(descriptor, events)
    return bool(waiting.poll(1000 * max(0.0, within_s)))


def _name(number: int) -> str:
    """A signal's name, or `signal N` for a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
