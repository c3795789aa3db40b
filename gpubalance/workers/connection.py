"""The controller's side of the connection to a host's agent: one for all the processes that the agent holds."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from pydantic import ValidationError

from gpubalance.devices.hosts import command_on, other_gpubalance, own_program, unreachable
from gpubalance.errors import EnvironmentFault, GpubalanceError, PartialResult
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, Host
from gpubalance.system.deadlines import TimeLimit
from gpubalance.system.state import current_folder, new_log
from gpubalance.text import clean
from gpubalance.workers.log import tail
from gpubalance.workers.pipes import writable
from gpubalance.workers.there import There
from gpubalance.workers.wire import BEATS_EVERY_S, MARK, SAID, Ended, Hello, Listen, Listens, Start, line

# Beats without a message from it. Counted in beats, as a program that was stopped for a while misses both.
_ANSWERS_WITHIN, _LOST_AFTER = 12, 4  # first over a slow ssh and from a slow disk, then in use
AGENT = "gpubalance.workers.agent"
_LONGEST = 1 << 24
_HELLO = MARK + b'{"kind":"hello"'
_TERMINALS = "-t of ssh, kubectl exec and docker exec, --pty of srun"


class Connection:
    """Connects to the agent on a host, or here if there is no host. What it starts ends with it.

    Raises EnvironmentFault if the prefix can't be run.
    """

    def __init__(self, host: Host | None, gpus: int) -> None:
        self._host = host
        self.failure: GpubalanceError | None = None  # once set, nothing more is exchanged
        self._log = new_log(f"agent-{host or 'here'}")
        self._numbers, self._processes = itertools.count(), dict[int, There]()
        self._asked: dict[int, Future[Listens]] = {}
        self._met = threading.Event()
        self._silent = 0
        self._telling = threading.Lock()
        self._waiting: list[bytes] | None = []  # messages held back until it answers and has the same software
        command = command_on(host, AGENT, gpus=gpus) or own_program(AGENT)
        pipe = subprocess.PIPE
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603  (no shell; the prefix is the user's own)
                    command, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise self._unreachable(f"can't be run: {error.strerror}") from None
        assert self._process.stdin and self._process.stdout  # noqa: S101,PT018  (pipes)
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout
        threading.Thread(target=self._read, daemon=True).start()

    def start(
        self,
        devices: Sequence[Device],
        *,
        log: Path | None = None,
        command: Sequence[str] = (),
        cluster: Cluster | None = None,
    ) -> There:
        """Starts a worker with these devices, whose stderr goes into the log, or the script `command` instead."""
        number, folder = next(self._numbers), str(current_folder())
        there = self._processes[number] = There(number, log, self.tell)
        told = Start(number=number, devices=tuple(devices), folder=folder, command=tuple(command), cluster=cluster)
        self.tell(line(told))
        if self.failure is not None:
            there.hear_end(self.failure)
        return there

    @property
    def holds_nothing(self) -> bool:
        """Whether the agent has not been sent anything yet, as it has not answered."""
        return self._waiting is not None

    def meet(self, limit: TimeLimit) -> None:
        """Waits until the agent has answered, or can't. Raises TimeLimitPassed."""
        while not self._met.wait(min(1.0, limit.left_s)):
            limit.check()

    def ask_addresses(self, count: int, script: str | None) -> Future[Listens]:
        """Asks where `count` processes may listen, and whether that script is there.

        The answer raises what `There.said` does.
        """
        number, folder = next(self._numbers), str(current_folder())
        answer = self._asked[number] = Future[Listens]()
        self.tell(line(Listen(number=number, host=self._host, count=count, folder=folder, script=script)))
        if self.failure is not None:
            self._fail(self.failure)
        return answer

    def tell(self, said: bytes) -> None:
        """Sends to the agent. If the connection is lost, the reader of the answer notices it."""
        with self._telling:
            if self._waiting is not None:
                self._waiting.append(said)
            else:
                self._put(said)

    def _put(self, said: bytes) -> None:
        rest = memoryview(said)
        with contextlib.suppress(OSError):
            while rest and self.failure is None:
                if writable(self._to, BEATS_EVERY_S):
                    rest = rest[os.write(self._to, rest[: select.PIPE_BUF]) :]  # so few bytes never block

    def watch(self) -> None:
        """Called regularly: tells the agent that its controller lives, and notices when the agent has gone silent."""
        self._silent += 1
        if self.failure is not None:
            return
        if not self._met.is_set():
            if self._silent >= _ANSWERS_WITHIN:
                self._fail(self._unreachable(f"did not answer within {_ANSWERS_WITHIN * BEATS_EVERY_S:g} s"))
        elif self._silent >= _LOST_AFTER:
            self.give_up(f"nothing has come from it for {_LOST_AFTER * BEATS_EVERY_S:g} s")
        elif self._telling.acquire(blocking=False):  # else something is being sent already
            if self.failure is None and writable(self._to, 0):
                with contextlib.suppress(OSError):
                    os.write(self._to, MARK + b"\n")
            self._telling.release()

    def _read(self) -> None:
        """Runs in its own thread and passes on to each process what it has said."""
        try:
            with self._from:
                while not (said := self._line()).startswith(_HELLO):
                    pass  # a shell's greeting
                self._greet(said)
                while True:
                    self._take(self._line())
        except GpubalanceError as error:
            self._fail(error)
        except ValueError as error:
            self._fail(PartialResult(f"what comes from {self._called} is not readable: {clean(str(error))}"))

    def _line(self) -> bytes:
        said = self._from.readline(_LONGEST)
        if said.endswith(b"\n"):
            return said
        how = f"prints a line of {_LONGEST >> 20} MiB and more" if len(said) == _LONGEST else self._ended()
        raise self._lost(f"the connection {how}") if self._met.is_set() else self._unreachable(how)

    def _ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        code = self._process.returncode
        return "closed its output" if code is None else f"ended with exit code {code}"

    def _greet(self, said: bytes) -> None:
        if said.endswith(b"\r\n"):  # an agent never sends that; with a terminal it would also read its own words
            raise self._unreachable("makes a terminal there", f"leave that option out of --via: {_TERMINALS}")
        try:
            hello = SAID.validate_json(said.removeprefix(MARK))
        except ValidationError:
            raise other_gpubalance(self._called) from None
        if isinstance(hello, Hello) and self._host is not None:
            hello.installed.check(self._host)
        with self._telling:
            waiting, self._waiting = self._waiting, None
            for one in waiting or ():
                self._put(one)
        self._silent = 0
        self._met.set()

    def _take(self, told: bytes) -> None:
        self._silent = 0
        said = told[len(MARK) : -1]
        if said.startswith(b"{"):
            what = SAID.validate_json(said)
            if isinstance(what, Listens):
                if (answer := self._asked.pop(what.number, None)) is not None:
                    answer.set_result(what)
            elif isinstance(what, Ended) and what.number in self._processes:
                self._processes[what.number].hear_end(what.code)
        elif said:
            number, stream, length = map(int, said.split())
            chunk = self._from.read(length)
            if number in self._processes:
                self._processes[number].hear(stream, chunk)

    @property
    def _called(self) -> str:
        return self._host or "this host"

    def _unreachable(self, how: str, remedy: str = "") -> EnvironmentFault:
        here = EnvironmentFault(f"what holds the processes on this host {how}")
        error = here if self._host is None else unreachable(self._host, how, remedy)
        error.log = tail(self._log)
        return error

    def _lost(self, how: str) -> PartialResult:
        return PartialResult(
            f"{self._called} is lost: {how}", remedy="is the host up, and its network?", log=tail(self._log)
        )

    def give_up(self, why: str) -> None:
        """Gives the host up as lost."""
        self._fail(self._lost(why))

    def _fail(self, error: GpubalanceError) -> None:
        """Ends the exchange and tells everyone who waits."""
        self.failure = self.failure or error
        self._met.set()
        for there in list(self._processes.values()):
            there.hear_end(self.failure)
        for number in list(self._asked):
            if (answer := self._asked.pop(number, None)) is not None:
                answer.set_exception(self.failure)
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Lets the agent end soon, and what it holds before it."""
        self.failure = self.failure or self._lost("its connection was ended")
        with self._telling, contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]

    def end(self, until_s: float) -> None:
        """Lets go and waits until the connection is gone; kills it after `until_s`."""
        self.let_go()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self.holds_nothing else max(0.0, until_s - time.monotonic()))
        self._kill()
        self._process.wait()
