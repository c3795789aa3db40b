"""A worker's process from the parent's side: start, send, receive within a deadline, end."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import IO, TYPE_CHECKING

from pydantic import ValidationError

from gpubalance.errors import DeadlinePassed, EnvironmentFault, GpubalanceError, PartialResult
from gpubalance.remedies import known, match_log
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.system.state import current_folder, new_log
from gpubalance.text import clean
from gpubalance.workers.log import bound, tail
from gpubalance.workers.messages import REPLY, AnyReply
from gpubalance.workers.pipes import new_pipe, readable, writable
from gpubalance.workers.signals import signals_held

if TYPE_CHECKING:
    from typing_extensions import Self

_LONGEST_MESSAGE = 1 << 24
# A worker reads requests at once, whatever else it does, unless it is stopped or its interpreter is held.
TAKES_WITHIN_S = 60.0
# A worker gets this long to end, then TERM, then KILL; together under 2 s, which Ctrl-C may take.
_ENDS_WITHIN_S = 0.5
# A killed worker is gone at once, unless the driver has much memory to free: the next one must not start before.
_DIES_WITHIN_S = 30.0
# A message may arrive this long after the deadline, and must then end a line, or the wait would have no end.
_LATE_S = 5.0
_LOOKS_EVERY_S = 1.0
_HERE = "127.0.0.1"
_STARTING = "TensorFlow is still being loaded, or the function that builds the model does not return"
_LACKS = "free what it lacks: memory, disk, processes (ulimit -u) or open files (ulimit -n)"
_LONGER = "give it longer: --deadline SECONDS"
# The current folder, which Python puts first, must not hide a module of TensorFlow's. INT ends it like TERM, without a
# traceback: a Ctrl-C is for its parent.
_PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); del sys.path[0]; "
    "from gpubalance.workers.serve import main; main(sys.argv[1:])"
)


_started: set[Process] = set()


@atexit.register
def _end_all() -> None:
    """Ends workers that were left over because an interrupt came between two lines."""
    for process in list(_started):
        process.end()


class Process:
    """One process. Use it as a context manager: however the block ends, the process and its group end with it."""

    def __init__(self, purpose: str, environment: Mapping[str, str], limit: TimeLimit = NO_LIMIT) -> None:
        """Waits for nothing past the end of `limit`. Raises EnvironmentFault if the process can't be started."""
        self._environment, self._limit = environment, limit
        self._buffer = bytearray()
        self._gone = False
        self.has_answered = False
        current_folder()  # the process starts in it, and could not report that it is gone
        try:
            self.log = new_log(purpose)
            with signals_held():
                self._start()
                _started.add(self)
        except OSError as error:
            raise EnvironmentFault(f"can't start a worker: {error.strerror}", remedy=_LACKS) from None

    def _start(self) -> None:
        with contextlib.ExitStack() as at_a_failure:
            requests, self._requests = new_pipe(at_a_failure)
            self._replies, replies = new_pipe(at_a_failure)
            with self.log.open("ab") as log:  # appends, as the log may be cut short meanwhile
                self._process = serving(requests, replies, log, self._environment)
            at_a_failure.pop_all()
        os.close(requests)
        os.close(replies)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """The process id, which is its group's too."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def send(self, request: Record, within_s: float = TAKES_WITHIN_S) -> None:
        """Sends a request. If the worker has died, that is noticed when its reply is read.

        Raises DeadlinePassed if it reads nothing for `within_s` seconds.
        """
        self.write(request.model_dump_json().encode(), within_s)

    def write(self, line: bytes, within_s: float = TAKES_WITHIN_S) -> None:
        """Sends a request that is already a line; otherwise like `send`."""
        rest = memoryview(line + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while rest:
                if not writable(self._requests, min(within_s, self._limit.left_s)):
                    raise self._silent(within_s, "being asked")
                rest = rest[os.write(self._requests, rest[: select.PIPE_BUF]) :]  # so few bytes never block

    def receive(self, within_s: float, doing: str) -> AnyReply:
        """The next message.

        Raises DeadlinePassed if the worker says nothing for `within_s` seconds, TimeLimitPassed at the end of the
        command's time, PartialResult if it has died; the messages say that it was `doing` this.
        """
        self._limit.check()
        line = self._line(time.monotonic() + min(within_s, self._limit.left_s))
        if line is None:
            raise self._silent(within_s, doing)
        if not line:
            raise self._died(doing)
        self.has_answered = True
        try:
            return REPLY.validate_json(line)
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

    def _line(self, deadline: float) -> bytes | None:
        """The next non-empty line; b"" when the other end is closed, None when the deadline passed."""
        while b"\n" not in self._buffer:
            bound(self.log)
            left = deadline - time.monotonic()
            # Reads even past the deadline: this process itself may have been stopped for a while.
            chunk = self._chunk(max(0.0, min(left, _LOOKS_EVERY_S)))
            if chunk is None:
                if left <= 0:
                    return None
                continue
            if not chunk or len(self._buffer) > _LONGEST_MESSAGE:
                return b""
            self._buffer = (self._buffer + chunk).lstrip(b"\n")
            if left < -_LATE_S and b"\n" not in chunk:
                return None
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest.lstrip(b"\n"))
        return line

    def _chunk(self, within_s: float) -> bytes | None:
        """What the process has written meanwhile; b"" at its end, None for nothing."""
        dead = self._process.poll() is not None
        if readable(self._replies, 0.0 if dead else within_s):
            return os.read(self._replies, 1 << 16)
        return b"" if dead else None  # what it started may still hold the pipe

    def _died(self, doing: str) -> GpubalanceError:
        code = self._exit_code()
        log = self.log_tail()
        row = match_log(log)
        if code is not None and code < 0:
            how = f"was ended by {_name(-code)}"
            if -code == signal.SIGKILL:
                how += ", probably as the host's memory ran out"
                row = row or known("host-memory")
        else:
            how = f"ended with exit code {code}" if code is not None else "closed its pipe"
        return PartialResult(
            f"the worker {how} while {doing}",
            cause=row.cause if row else "",
            remedy="\n".join([*([row.remedy] if row else []), f"its whole log is {self.log}"]),
            log=log,
        )

    def _exit_code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        return self._process.returncode

    def log_tail(self) -> str:
        """The last lines of the log."""
        return tail(self.log)

    def kill(self) -> None:
        """Kills the process and its group, from any thread: whoever waits for its reply hears that it has died."""
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Ends the process and everything in its group, and waits until it is gone. May be called more than once."""
        if not self._gone:
            self._end()
            self._gone = True
            _started.discard(self)

    def _end(self) -> None:
        # An interrupt may come at any line: the next call, at the latest the one at the program's end, does all of it
        # again.
        requests, self._requests = self._requests, -1
        replies, self._replies = self._replies, -1
        for descriptor in (requests, replies):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for signal_number, within_s in (
            (None, _ENDS_WITHIN_S),
            (signal.SIGTERM, _ENDS_WITHIN_S),
            (signal.SIGKILL, _DIES_WITHIN_S),
        ):
            if signal_number is not None:
                self._signal(signal_number)
            try:
                self._process.wait(within_s)
                break
            except subprocess.TimeoutExpired:
                continue
        self._signal(signal.SIGKILL)  # what the user's model may have started

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def free_addresses(count: int) -> tuple[str, ...]:
    """Addresses of this host on which so many processes may listen for each other."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((_HERE, 0))) for _ in range(count)]
        return tuple(f"{_HERE}:{one.getsockname()[1]}" for one in sockets)


def serving(
    requests: int, replies: int, log: IO[bytes] | int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a worker on this host that reads requests from and writes replies to these pipes. Raises OSError."""
    return subprocess.Popen(  # noqa: S603  (no shell, and no word of a file's)
        [sys.executable, "-c", _PROGRAM, str(requests), str(replies)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(requests, replies),
        env=dict(environment),
        start_new_session=True,  # a Ctrl-C in the terminal reaches only the parent, which ends it
    )


def _name(number: int) -> str:
    """A signal's name, or `signal N` for a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
