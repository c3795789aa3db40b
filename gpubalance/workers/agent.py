"""The program that runs on another host, behind the prefix that reaches it.

It holds that host's processes, workers and training scripts, each under a number: it starts them, passes messages on in
both directions, and reports how they end. It needs no TensorFlow. When its controller is gone, or silent for half a
minute, it ends them and itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from gpubalance.devices.cluster import tf_config
from gpubalance.devices.hosts import Installed
from gpubalance.settings.device import Host
from gpubalance.workers.environment import worker_environment
from gpubalance.workers.parent import die_with_parent
from gpubalance.workers.pipes import new_pipe, readable
from gpubalance.workers.process import serving
from gpubalance.workers.wire import (
    BEATS_EVERY_S,
    ERRORS,
    GRACE_S,
    MARK,
    OUT,
    PIECES_AHEAD,
    TOLD,
    End,
    Ended,
    Hello,
    Listen,
    Listens,
    Signal,
    Start,
    line,
    piece,
)

_ALONE_S = 30.0
_LOOKS_EVERY_S = 0.5
_CHUNK = 1 << 16
_WHOLE_PIPE = 1 << 20
_ALL = 1 << 20
_NOT_STARTED = 126  # the exit code that shells use


class Controller:
    """Sends to the controller, one message at a time."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)  # whatever prints, prints into the log
        self._one = threading.Lock()
        self.tell(b"\n" + line(Hello(installed=Installed.here())))  # a greeting there may not have ended its line
        threading.Thread(target=self._beat, daemon=True).start()

    def tell(self, said: bytes) -> None:
        with self._one, contextlib.suppress(OSError):  # the reading thread notices that a controller is gone
            while said:
                said = said[os.write(self._out, said) :]

    def _beat(self) -> None:
        while True:
            threading.Event().wait(BEATS_EVERY_S)
            self.tell(MARK + b"\n")


class Held:
    """A process on this host: a worker, which is sent requests, or a script. Raises OSError if it does not start."""

    def __init__(self, start: Start, controller: Controller) -> None:
        self._number, self._controller, self._is_script = start.number, controller, bool(start.command)
        self._requests = queue.SimpleQueue[bytes | None]()
        self._room = threading.Semaphore(PIECES_AHEAD)
        with contextlib.ExitStack() as at_a_failure:
            (requests, to_it), (out, writes), (errors, complains) = (new_pipe(at_a_failure) for _ in range(3))
            if self._is_script:
                self._process = _script(start, writes, complains)
            else:
                self._process = serving(requests, writes, complains, worker_environment(start.devices))
            at_a_failure.pop_all()
        for one in (requests, writes, complains):
            os.close(one)
        for work in (lambda: self._ask(to_it), lambda: self._tell(out, errors)):
            threading.Thread(target=work, daemon=True).start()

    def ask(self, request: bytes) -> None:
        """Queues a request: the process may take long to read it, and nothing waits for that."""
        self._requests.put(request + b"\n")

    def _ask(self, to_it: int) -> None:
        with os.fdopen(to_it, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
            for request in iter(self._requests.get, None):
                while request:
                    request = request[pipe.write(request) :]

    def more(self, pieces: int) -> None:
        """Lets so many more of a script's pieces be on their way."""
        self._room.release(pieces)

    def _tell(self, out: int, errors: int) -> None:
        beside = threading.Thread(target=self._pass_on, args=(ERRORS, errors), daemon=True)
        beside.start()
        self._pass_on(OUT, out)
        code = self._process.wait()
        if not self._is_script:
            self.signal(signal.SIGKILL)  # what a user's model may have started
        beside.join()
        self._controller.tell(line(Ended(number=self._number, code=code)))

    def _pass_on(self, stream: int, pipe: int) -> None:
        for chunk in said(self._process, pipe):
            if self._is_script:
                self._room.acquire()
            self._controller.tell(piece(self._number, stream, chunk))
        os.close(pipe)

    def signal(self, number: int) -> None:
        """Sends a signal to the process and to what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Kills the process: a worker would do nothing more, and one stuck in a collective ends in no other way."""
        self._requests.put(None)
        self.more(_ALL)
        self.signal(signal.SIGKILL)

    def wait(self) -> None:
        """Waits until the process is gone: only then does a GPU get its memory back."""
        self._process.wait()


def main() -> None:
    """Serves until the controller closes its end or is silent."""
    controller, held = Controller(), dict[int, Held]()
    try:
        for told in heard(0):
            if told.startswith(MARK):
                _do(told.removeprefix(MARK), controller, held)
                continue
            number, _, request = told.partition(b" ")
            if int(number) in held:
                held[int(number)].ask(request)
    finally:
        for one in held.values():
            one.end()
        for one in held.values():
            one.wait()


def heard(stdin: int, alone_s: float = _ALONE_S) -> Iterator[bytes]:
    """The lines that the controller sends besides its beats, until it is gone or silent for `alone_s`."""
    rest = bytearray()
    while select.select([stdin], [], [], alone_s)[0]:
        chunk = os.read(stdin, _CHUNK)
        if not chunk:
            return
        rest += chunk
        if b"\n" in chunk:
            *lines, rest = rest.split(b"\n")
            yield from (bytes(line) for line in lines if line != MARK)


def _do(told: bytes, controller: Controller, held: dict[int, Held]) -> None:
    """Carries out a command in the main thread, which lives on: Linux ends a child with the thread that started it."""
    what = TOLD.validate_json(told)
    if isinstance(what, Start | Listen):
        with contextlib.suppress(OSError):
            os.chdir(what.folder)
    if isinstance(what, Start):
        try:
            held[what.number] = Held(what, controller)
        except OSError as error:
            controller.tell(piece(what.number, ERRORS, f"can't be started: {error.strerror}\n".encode()))
            controller.tell(line(Ended(number=what.number, code=_NOT_STARTED)))
    elif isinstance(what, Listen):
        controller.tell(line(_listening(what)))
    elif what.number not in held:
        return
    elif isinstance(what, End):
        held.pop(what.number).end()
    elif isinstance(what, Signal):
        held[what.number].signal(what.signal)
        later = threading.Timer(GRACE_S, held[what.number].signal, (signal.SIGKILL,))
        later.daemon = True
        later.start()
    else:
        held[what.number].more(what.pieces)


def _script(start: Start, out: int, errors: int) -> subprocess.Popen[bytes]:
    """Starts a script that sees its devices, knows its place in the cluster, and ends with this process."""
    return subprocess.Popen(  # noqa: S603  (no shell: the words are the user's own command line)
        [sys.executable, *start.command],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=errors,
        env=worker_environment(start.devices) | (tf_config(start.cluster) if start.cluster else {}),
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def said(process: subprocess.Popen[bytes], pipe: int) -> Iterator[bytes]:
    """All that the process writes until it ends. What it has started may hold the pipe open for longer."""
    while process.poll() is None:
        if readable(pipe, _LOOKS_EVERY_S):
            chunk = os.read(pipe, _CHUNK)
            if not chunk:
                return
            yield chunk
    if readable(pipe, 0) and (chunk := os.read(pipe, _WHOLE_PIPE)):
        yield chunk


def _listening(asked: Listen) -> Listens:
    is_absent = asked.script is not None and not Path(asked.script).is_file()
    address = _address(asked.host) if asked.host else "127.0.0.1"
    with contextlib.ExitStack() as bound:  # all at once, so that no two are the same
        sockets = [bound.enter_context(socket.socket()) for _ in range(0 if is_absent else asked.count)]
        for one in sockets:
            one.bind((address, 0))
        addresses = tuple("{}:{}".format(*one.getsockname()) for one in sockets)
    return Listens(number=asked.number, addresses=addresses, folder=str(Path.cwd()))


def _address(host: Host) -> str:
    """The address at which other hosts reach this one: its name's, else the one that ssh used, else its first card's.

    A card that is down comes last, but it stays: it may be just coming up, and have no carrier yet.
    """
    cards, is_up = psutil.net_if_addrs(), {name: card.isup for name, card in psutil.net_if_stats().items()}
    own = [
        one.address
        for name in sorted(cards, key=lambda name: not is_up.get(name))
        for one in cards[name]
        if one.family == socket.AF_INET and not one.address.startswith("127.")
    ]
    named = [*os.environ.get("SSH_CONNECTION", "").split()[2:3]]
    with contextlib.suppress(OSError):
        named.insert(0, socket.gethostbyname(host))
    return next((one for one in (*named, *own) if one in own), "127.0.0.1")
