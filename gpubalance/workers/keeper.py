"""The program that starts a process on a host, a worker or a script, and ends it: `python keeper.py
[HOST]`.

It says at which address the process may listen, reads from stdin what to start, and passes all
further lines on. A worker writes its replies to the same stdout; what a script prints becomes
messages. The last message is how the process ended. When stdin ends, the process does, with all
that it has started. With HOST, the name by which another machine reaches this one, each side also
sends a zero byte now and then, which no message has: half a minute without any is an end too. It
loads no TensorFlow and no other slow module.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

from gpubalance._version import __version__
from gpubalance.system.versions import software

GRACE_S = 3.0  # a script that waits in a collective ends only by KILL
_BEATS_EVERY_S = 5.0
_BEAT = b"\0"
_ALONE_S = 30.0
# After its end, what it has started may hold its output open for longer
_PRINTS_WITHIN_S = 10.0
_MOST_WAITING = 1000
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20  # characters; longer ones are told in pieces
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Loaded here, as a child forked from threads must not search for it
_LIBC = ctypes.CDLL(None)
# The current folder, which Python puts first, must not hide a module of TensorFlow's. INT ends it
# like TERM, without a traceback: a Ctrl-C is for its parent.
_WORKER = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); del sys.path[0]; "
    "from gpubalance.workers.serve import main; main(int(sys.argv[1]))"
)


def main() -> None:
    """Holds one process until it ends, or until nobody wants it any more."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    host = sys.argv[1] if len(sys.argv) > 1 else None
    replies = Writer(os.fdopen(1, "wb", 0), beats=host is not None)
    requests = heard(os.fdopen(0, "rb", 0), _ALONE_S if host else None)
    # While it is open, no other process gets this address
    with socket.socket() as reserved:
        reserved.bind((_address(host) if host else "127.0.0.1", 0))
        address = "{}:{}".format(*reserved.getsockname())
        _say(replies, "Hello", address=address, installed=installed() if host else None)
        first = next(requests, None)
        if first is None:
            return
        (start,) = json.loads(first).values()
        if start["words"]:
            reserved.close()
        held = ChildProcess(replies, **start)
        for request in requests:
            reserved.close()
            held.ask(request)
    held.end()


def heard(pipe: IO[bytes], alone_s: float | None) -> Iterator[bytes]:
    """The lines that come until their sender is gone or, if given, silent for `alone_s`."""
    reader = Reader(pipe)
    with contextlib.suppress(EOFError):
        while (lines := reader.lines(alone_s)) is not None:
            yield from lines


class Reader:
    """The lines of a pipe, without beats. `rest` is the beginning of the next one."""

    def __init__(self, pipe: IO[bytes]) -> None:
        """`pipe` has no buffer."""
        self._pipe, self.rest = pipe, b""
        self._waiting = select.poll()  # `select` takes no high number
        self._waiting.register(pipe, select.POLLIN)

    def lines(self, within_s: float | None) -> list[bytes] | None:
        """Those that have come, None if nothing has, not even a beat. Raises EOFError
        at the end.
        """
        if not self._waiting.poll(None if within_s is None else 1000 * within_s):
            return None
        chunk = b"" if self._pipe.closed else self._pipe.read(_CHUNK)
        if not chunk:
            raise EOFError
        *lines, self.rest = (self.rest + chunk.replace(_BEAT, b"")).split(b"\n")
        return lines


class Writer(threading.Thread):
    """Writes lines to a pipe, so that nobody waits for its reader; while there are none it may send
    beats.
    """

    def __init__(self, pipe: IO[bytes], *, beats: bool = False) -> None:
        super().__init__(daemon=True)
        self._pipe, self._every_s = pipe, _BEATS_EVERY_S if beats else None
        self._lines = queue.Queue[bytes](_MOST_WAITING)
        self.start()

    def put(self, line: bytes) -> None:
        """Writes the line soon."""
        self._lines.put(line + b"\n")

    def close(self) -> None:
        """Closes the pipe once all is written."""
        self._lines.put(b"")

    def run(self) -> None:
        """Writes until it is closed, or nobody reads any more."""
        with contextlib.suppress(OSError), self._pipe:
            while rest := self._next():
                while rest:
                    rest = rest[self._pipe.write(rest) :]

    def _next(self) -> bytes:
        try:
            return self._lines.get(timeout=self._every_s)
        except queue.Empty:
            return _BEAT


class ChildProcess:
    """The process: the script of these `words`, or without any a worker."""

    def __init__(
        self, replies: Writer, environment: dict[str, str | None], folder: str, words: list[str]
    ) -> None:
        self._replies = replies
        self._environment = {**os.environ, **environment}
        self._printing: list[threading.Thread] = []
        self._requests: Writer | None = None
        self._gone = threading.Event()
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._process = self._script(words) if words else self._worker()
        threading.Thread(target=self._watch, daemon=True).start()

    def _script(self, words: list[str]) -> subprocess.Popen[Any]:
        pipe, text = subprocess.PIPE, {"encoding": "utf-8", "errors": "replace"}
        process = self._popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **text)
        for stream in ("stdout", "stderr"):
            thread = threading.Thread(
                target=self._tell, args=(stream, getattr(process, stream)), daemon=True
            )
            thread.start()
            self._printing.append(thread)
        return process

    def _worker(self) -> subprocess.Popen[Any]:
        replies = os.dup(1)
        words = ["-c", _WORKER, str(replies)]
        process = self._popen(
            words, stdin=subprocess.PIPE, stdout=2, pass_fds=(replies,), bufsize=0
        )
        assert process.stdin is not None  # noqa: S101  (a pipe)
        self._requests = Writer(process.stdin)
        return process

    def _popen(self, words: list[str], **how: Any) -> subprocess.Popen[Any]:
        """Called in the main thread, which lives on: Linux ends a child with the thread that has
        started it.
        """
        return subprocess.Popen(  # noqa: S603  (no shell: the words are the user's own command line, or ours)
            [sys.executable, *words],
            env={name: value for name, value in self._environment.items() if value is not None},
            start_new_session=True,
            preexec_fn=die_with_parent,
            **how,
        )

    def ask(self, request: bytes) -> None:
        """Passes a request on to a worker. A script is sent the signal of that number, and killed a
        moment later.
        """
        if self._requests is not None:
            self._requests.put(request)
            return
        self._signal(int(request))
        later = threading.Timer(GRACE_S, self._signal, (signal.SIGKILL,))
        later.daemon = True
        later.start()

    def _tell(self, stream: str, pipe: IO[str]) -> None:
        for text in iter(functools.partial(pipe.readline, _LONGEST_LINE), ""):
            _say(self._replies, "Printed", stream=stream, text=text.removesuffix("\n"))

    def _watch(self) -> None:
        """Says in the end how the process has ended, after all that it has printed, and ends what
        it has started.
        """
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
        """Kills the process and waits until all is gone: only then does a GPU get its
        memory back.
        """
        self._signal(signal.SIGKILL)
        self._gone.wait()
        os._exit(0)


def _say(replies: Writer, kind: str, **fields: Any) -> None:
    # Whatever came before may not have ended its line: a shell's greeting, or a worker that was
    # killed
    replies.put(b"\n" + json.dumps({kind: fields}, separators=(",", ":")).encode())


def _end_children() -> None:
    """Kills what the process has left in sessions of its own, but for what another user runs, and
    waits for its end.
    """
    # The first: there is none any more.
    with contextlib.suppress(ChildProcessError, PermissionError):
        while True:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                import psutil

                for child in psutil.Process().children():
                    os.kill(child.pid, signal.SIGKILL)
                os.wait()


def die_with_parent() -> None:
    """Linux ends this process with its parent, even if Python can't: TensorFlow may hold the
    interpreter.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _LIBC.prctl(option, value)


def installed() -> dict[str, str | None]:
    """Versions that must be the same on all hosts of a run."""
    found = software()
    python = ".".join(map(str, sys.version_info[:2]))
    return {
        "gpubalance": __version__,
        "python": python,
        "tensorflow": found.tensorflow,
        "keras": found.keras,
    }


def _address(host: str) -> str:
    """The address at which other hosts reach this one: its name's, else the one that ssh used, else
    its first card's.

    A card that is down comes last, but it stays: it may be just coming up, and have no carrier yet.
    """
    import psutil

    cards, is_up = (
        psutil.net_if_addrs(),
        {name: card.isup for name, card in psutil.net_if_stats().items()},
    )
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


if __name__ == "__main__":
    main()
