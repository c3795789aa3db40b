"""The program that starts a process on a host, a worker or a script, and ends it: `python keeper.py [HOST]`.

It says at which address the process may listen, reads from stdin what to start, and passes all further lines on. A
worker writes its replies to the same stdout; what a script prints becomes messages. The last message is how the process
ended. When stdin ends, the process does, with all that it has started. With HOST, the name by which another machine
reaches this one, each side also sends a zero byte now and then, which no message has: half a minute without any is an
end too. It loads no TensorFlow and no other slow module.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from io import IncrementalNewlineDecoder
from pathlib import Path
from typing import IO, Any, NoReturn

from gpubalance._version import __version__
from gpubalance.system.versions import software

BEATS_EVERY_S = 5.0
BEAT = b"\0"
GRACE_S = 3.0  # a script that waits in a collective ends only by KILL
_ALONE_S = 30.0
_LOOKS_EVERY_S = 0.5
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20  # characters; longer ones are told in pieces
_NOT_FOUND = 127  # the exit code that shells use
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here, as a child forked from threads must not search for it
# The current folder, which Python puts first, must not hide a module of TensorFlow's. INT ends it like TERM, without a
# traceback: a Ctrl-C is for its parent.
_WORKER = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); del sys.path[0]; "
    "from gpubalance.workers.serve import main; main(sys.argv[1:])"
)
_one_at_a_time = threading.Lock()


def main() -> None:
    """Holds one process until it ends, or until nobody wants it any more."""
    host = sys.argv[1] if len(sys.argv) > 1 else None
    if host:
        threading.Thread(target=_beat, daemon=True).start()
    with socket.socket() as reserved:  # while it is open, no other process gets this address
        reserved.bind((_address(host) if host else "127.0.0.1", 0))
        address = "{}:{}".format(*reserved.getsockname())
        _say(kind="hello", address=address, installed=installed() if host else None)
        lines = heard(0, _ALONE_S if host else None)
        first = next(lines, None)
        if first is None:
            return
        start = json.loads(first)
        if start["words"]:
            reserved.close()
        held = Held(**start)
        for line in lines:
            reserved.close()
            held.ask(line)
    held.end()


def heard(stdin: int, alone_s: float | None) -> Iterator[bytes]:
    """The lines that come, without beats, until their sender is gone or, if given, silent for `alone_s`."""
    rest = b""
    while select.select([stdin], [], [], alone_s)[0]:
        chunk = os.read(stdin, _CHUNK)
        if not chunk:
            return
        *lines, rest = (rest + chunk.replace(BEAT, b"")).split(b"\n")
        yield from lines


class Held:
    """The process: the script of these `words`, or without any a worker."""

    def __init__(self, environment: dict[str, str | None], folder: str, words: list[str]) -> None:
        self._is_script = bool(words)
        self._environment = {**os.environ, **environment}
        self._requests = queue.SimpleQueue[bytes]()
        with contextlib.suppress(OSError):
            os.chdir(folder)
        if self._is_script and not words[0].startswith("-") and not Path(words[0]).is_file():
            _end(_NOT_FOUND, missing=str(Path.cwd()))
        self._process = self._script(words) if self._is_script else self._worker()
        threading.Thread(target=self._watch, daemon=True).start()

    def _script(self, words: list[str]) -> subprocess.Popen[bytes]:
        return self._popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _worker(self) -> subprocess.Popen[bytes]:
        requests, writing = os.pipe()
        replies = os.dup(1)
        process = self._popen(["-c", _WORKER, str(requests), str(replies)], stdout=2, pass_fds=(requests, replies))
        os.close(requests)
        os.close(replies)
        threading.Thread(target=self._pass_on, args=(os.fdopen(writing, "wb"),), daemon=True).start()
        return process

    def _popen(self, words: list[str], **how: Any) -> subprocess.Popen[bytes]:
        """Called in the main thread, which lives on: Linux ends a child with the thread that has started it."""
        return subprocess.Popen(  # noqa: S603  (no shell: the words are the user's own command line, or ours)
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in self._environment.items() if value is not None},
            start_new_session=True,
            preexec_fn=die_with_parent,
            **how,
        )

    def ask(self, line: bytes) -> None:
        """Passes a request on to a worker. A script is sent the signal of that number, and killed a moment later."""
        if not self._is_script:
            self._requests.put(line + b"\n")
            return
        self._signal(int(line))
        later = threading.Timer(GRACE_S, self._signal, (signal.SIGKILL,))
        later.daemon = True
        later.start()

    def _pass_on(self, pipe: IO[bytes]) -> None:
        """Runs in a thread: the worker may take long to read, and nothing waits for that."""
        with contextlib.suppress(BrokenPipeError):
            while True:
                pipe.write(self._requests.get())
                pipe.flush()

    def _watch(self) -> None:
        """Says what a script prints, and in the end how the process has ended."""
        printed = {"stdout": self._process.stdout, "stderr": self._process.stderr} if self._is_script else {}
        telling = [threading.Thread(target=self._tell, args=one) for one in printed.items()]
        for one in telling:
            one.start()
        for one in telling:
            one.join()
        code = self._process.wait()
        self._signal(signal.SIGKILL)  # what a user's model may have started
        _end(code)

    def _tell(self, stream: str, pipe: IO[bytes]) -> None:
        for text in _lines(self._printed(pipe.fileno())):
            _say(kind="printed", stream=stream, text=text)

    def _printed(self, pipe: int) -> Iterator[bytes]:
        """All that the process writes until it ends. What it has started may hold the pipe open for longer."""
        has_ended = False
        while not has_ended:
            has_ended = self._process.poll() is not None
            while select.select([pipe], [], [], 0 if has_ended else _LOOKS_EVERY_S)[0]:
                chunk = os.read(pipe, _CHUNK)
                if not chunk:
                    return
                yield chunk

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Kills the process and waits until it is gone: only then does a GPU get its memory back."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        os._exit(0)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    decoder, rest = IncrementalNewlineDecoder(getincrementaldecoder("utf-8")("replace"), translate=True), ""
    for chunk in chunks:
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        yield from lines
        if len(rest) > _LONGEST_LINE:
            yield rest
            rest = ""
    if rest := rest + decoder.decode(b"", final=True):
        yield rest


def _say(**message: Any) -> None:
    with _one_at_a_time, contextlib.suppress(OSError):  # who reads is gone: stdin has ended too
        # Whatever came before may not have ended its line: a shell's greeting, or a worker that was killed
        sys.stdout.write("\n" + json.dumps(message, separators=(",", ":")) + "\n")
        sys.stdout.flush()


def _end(code: int, missing: str | None = None) -> NoReturn:
    """Says how the process has ended, after whatever it said last, and ends this one."""
    _say(kind="ended", code=code, missing=missing)
    os._exit(0)


def _beat() -> None:
    while True:
        threading.Event().wait(BEATS_EVERY_S)
        with contextlib.suppress(OSError):
            os.write(1, BEAT)


def die_with_parent() -> None:
    """Linux ends this process with its parent, even if Python can't: TensorFlow may hold the interpreter."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def installed() -> dict[str, str | None]:
    """Versions that must be the same on all hosts of a run."""
    found = software()
    python = ".".join(map(str, sys.version_info[:2]))
    return {"gpubalance": __version__, "python": python, "tensorflow": found.tensorflow, "keras": found.keras}


def _address(host: str) -> str:
    """The address at which other hosts reach this one: its name's, else the one that ssh used, else its first card's.

    A card that is down comes last, but it stays: it may be just coming up, and have no carrier yet.
    """
    import psutil

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


if __name__ == "__main__":
    main()
