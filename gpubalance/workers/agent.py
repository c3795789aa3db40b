"""Starts a process on a host, a worker or a script, and ends it: `python agent.py [HOST]`.

It says what is installed there and at which address the process may listen, reads from stdin what
to start, and passes all further lines on. A worker writes its replies to the same stdout; what a
script prints becomes messages. The last message is how the process ended. When stdin ends, the
process does, with all that it has started. With HOST, the name by which another machine reaches
this one, each side also sends a beat now and then: half a minute without any is an end too. It
loads no TensorFlow and no other slow module.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import IO, Any

from gpubalance._version import __version__
from gpubalance.programs import WORKER
from gpubalance.system.versions import software
from gpubalance.workers.lines import REPORTS, LineWriter, lines_of

GRACE_S = 3.0  # a script that waits in a collective ends only by KILL
_ALONE_S = 30.0
# After its end, what it has started may hold its output open for longer
_PRINTS_WITHIN_S = 10.0
_NOT_STARTED = 126  # what a shell's exit code is for a command that can't be run
_LONGEST_LINE = 1 << 20  # characters; longer ones are told in pieces
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded here, as a child forked from threads must not search for it
_LIBC = ctypes.CDLL(None)


def installed() -> dict[str, str | None]:
    """Versions that must be the same on all hosts of a run."""
    here = software()
    return {
        "gpubalance": __version__,
        "python": ".".join(map(str, sys.version_info[:2])),
        "tensorflow": here.tensorflow,
        "keras": here.keras,
    }


def address_of(host: str) -> str:
    """Where other hosts reach this one, which they call `host` or `user@host`.

    It is the address of that name, else the one that ssh used, else that of the first card. A card
    that is down comes last, but it stays: it may be just coming up, and have no carrier yet.
    """
    own = _own_addresses()
    wanted = []
    with contextlib.suppress(OSError):
        wanted.append(socket.gethostbyname(host.rpartition("@")[2]))
    wanted += os.environ.get("SSH_CONNECTION", "").split()[2:3]
    for address in wanted + own:
        if address in own:
            return address
    return "127.0.0.1"


def _own_addresses() -> list[str]:
    import psutil  # here, as an agent that has no other host needs none

    states = psutil.net_if_stats()
    cards = psutil.net_if_addrs()
    up = [name for name in cards if name in states and states[name].isup]
    down = [name for name in cards if name not in up]
    addresses = []
    for name in up + down:
        for card in cards[name]:
            if card.family == socket.AF_INET and not card.address.startswith("127."):
                addresses.append(card.address)
    return addresses


def main() -> None:
    """Holds one process until it ends, or until nobody wants it any more."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    alone_s = None
    address = "127.0.0.1"
    versions = None
    if len(sys.argv) > 1:
        alone_s = _ALONE_S
        address = address_of(sys.argv[1])
        versions = installed()
    replies = LineWriter(os.fdopen(1, "wb", 0), beats=alone_s is not None)
    requests = lines_of(os.fdopen(0, "rb", 0), alone_s)
    # While it is open, no other process gets this address
    with socket.socket() as reserved:
        reserved.bind((address, 0))
        _, port = reserved.getsockname()
        _say(replies, "Hello", address=f"{address}:{port}", installed=versions)
        first = next(requests, None)
        if first is None:
            return
        (start,) = json.loads(first).values()
        if start["words"]:
            reserved.close()
        try:
            child = ChildProcess(replies, **start)
        except (OSError, RuntimeError) as error:  # RuntimeError: no room for a thread
            if not start["words"]:
                raise  # a worker's log has it
            _say_not_started(replies, error)
            return
        for request in requests:
            reserved.close()
            child.ask(request)
    child.end()


class ChildProcess:
    """The process: the script of these `words`, or without any a worker."""

    def __init__(
        self,
        replies: LineWriter,
        environment: dict[str, str | None],
        folder: str,
        words: list[str],
    ) -> None:
        self._replies = replies
        variables = {**os.environ, **environment}
        self._environment = {
            name: text for name, text in variables.items() if text is not None
        }
        self._printing: list[threading.Thread] = []
        self._requests: LineWriter | None = None
        self._gone = threading.Event()
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._process = self._script(words) if words else self._worker()
        threading.Thread(target=self._watch, daemon=True).start()

    def _script(self, words: list[str]) -> subprocess.Popen[Any]:
        reading, writing = os.pipe()
        self._environment[REPORTS] = f"{writing}:{os.fstat(writing).st_ino}"
        process = self._popen(
            words,
            pass_fds=(writing,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        os.close(writing)
        reports = os.fdopen(reading, encoding="utf-8")
        for stream, pipe in (
            ("stdout", process.stdout),
            ("stderr", process.stderr),
            ("report", reports),
        ):
            thread = threading.Thread(
                target=self._pass_on, args=(stream, pipe), daemon=True
            )
            thread.start()
            self._printing.append(thread)
        return process

    def _worker(self) -> subprocess.Popen[Any]:
        replies = os.dup(1)
        words = [WORKER, str(replies)]
        process = self._popen(
            words, stdin=subprocess.PIPE, stdout=2, pass_fds=(replies,), bufsize=0
        )
        assert process.stdin is not None  # noqa: S101  (a pipe)
        self._requests = LineWriter(process.stdin)
        return process

    def _popen(self, words: list[str], **how: Any) -> subprocess.Popen[Any]:
        """Called in the main thread, which lives on.

        Linux ends a child with the thread that has started it.
        """
        return subprocess.Popen(  # noqa: S603  (no shell: the words are the user's own command line, or ours)
            [sys.executable, *words],
            env=self._environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
            **how,
        )

    def ask(self, request: bytes) -> None:
        """Passes a request on to a worker.

        A script is sent the signal of that number, and killed a moment later.
        """
        if self._requests is not None:
            self._requests.put(request)
            return
        self._signal(int(request))
        later = threading.Timer(GRACE_S, self._signal, (signal.SIGKILL,))
        later.daemon = True
        later.start()

    def _pass_on(self, stream: str, pipe: IO[str]) -> None:
        for text in iter(functools.partial(pipe.readline, _LONGEST_LINE), ""):
            _say(self._replies, "Printed", stream=stream, text=text.removesuffix("\n"))

    def _watch(self) -> None:
        """Waits for the process's end and ends what it has started; says last how it ended."""
        pid = status = 0
        while pid != self._process.pid:  # orphans of its own come to this process
            pid, status = os.wait()
        self._signal(signal.SIGKILL)
        _end_children()
        self._gone.set()
        for thread in self._printing:
            thread.join(_PRINTS_WITHIN_S)
        _say(self._replies, "Ended", code=os.waitstatus_to_exitcode(status))
        self._replies.close()
        self._replies.join()
        os._exit(0)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Kills the process and waits until all is gone: only then does a GPU free its memory."""
        self._signal(signal.SIGKILL)
        self._gone.wait()
        os._exit(0)


def _say(replies: LineWriter, kind: str, **fields: Any) -> None:
    # Whatever came before may not have ended its line: a shell's greeting, or a worker that was
    # killed
    replies.put(b"\n" + json.dumps({kind: fields}, separators=(",", ":")).encode())


def _say_not_started(replies: LineWriter, error: Exception) -> None:
    text = f"gpubalance can't start it: {getattr(error, 'strerror', None) or error}"
    _say(replies, "Printed", stream="stderr", text=text)
    _say(replies, "Ended", code=_NOT_STARTED)
    replies.close()
    replies.join()


def _end_children() -> None:
    """Kills what the process has left in sessions of its own, and waits for its end.

    What another user runs is left.
    """
    # ChildProcessError: there is none any more
    with contextlib.suppress(ChildProcessError, PermissionError):
        while True:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                import psutil

                for child in psutil.Process().children():
                    os.kill(child.pid, signal.SIGKILL)
                os.wait()


def die_with_parent() -> None:
    """Linux ends this process with its parent, even while TensorFlow holds the interpreter."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _LIBC.prctl(option, value)
