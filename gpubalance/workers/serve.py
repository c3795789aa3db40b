"""The program of a worker's process, which takes requests from stdin and replies to another pipe.

It loads TensorFlow at once, before any request, so that a parent can start it before it is needed.
Then it does one request after the other, and ends by itself when its requests do. Its own stdout
and stderr, where TensorFlow writes, are a log file that the parent opened.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubalance.errors import BadInput, OutOfMemory
from gpubalance.remedies import known_error, match
from gpubalance.settings.record import Record
from gpubalance.workers.code import code_key
from gpubalance.workers.messages import (
    AnyRequest,
    Copied,
    Copy,
    CountFlops,
    Failed,
    Flops,
    Inspect,
    Inspected,
    Measure,
    Measured,
    Open,
    Pipe,
    Pull,
    PulledAll,
    Ready,
    Reduce,
    Reduced,
    Stop,
    Survey,
    Surveyed,
    TimeBlocks,
    Trace,
    Traced,
    Where,
    Whereabouts,
    from_line,
    to_line,
)

if TYPE_CHECKING:
    from gpubalance.engine.pipeline.session import LayersSession
    from gpubalance.engine.session import Session

# The real ones, whatever a user's program has assigned to sys.stderr
_STDIN, _STDERR = 0, 2


def main(replies: int) -> None:
    """Serves until the parent closes its end of stdin, where the requests come; `replies` is the
    number of a pipe.
    """
    serving = _Serving(replies)
    requests = os.fdopen(os.dup(_STDIN), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), _STDIN)  # for the user's model
    threading.Thread(target=serving.read, args=(requests,), daemon=True).start()
    # A user's model may be in the current folder, but TensorFlow's modules must not be found there.
    sys.path.append(str(Path.cwd()))
    broken = _load_engine()
    while True:
        request = serving.next()
        if broken is not None:
            serving.say(broken)
        else:
            serving.answer(request)


class _Serving:
    """The worker: its model, once it is open, what it is asked and where it replies."""

    def __init__(self, replies: int) -> None:
        self._session: Any = None  # a Session, or a LayersSession
        self._asked: Open | None = None  # for the session
        self._lines = queue.SimpleQueue[bytes]()
        self._replies = os.fdopen(replies, "wb")
        self._one_at_a_time = threading.Lock()

    def read(self, requests: Any) -> None:
        """Takes requests as they come. When the pipe closes, the parent is gone or done, and the
        process ends.

        This thread answers where the process is, as the main thread may hang.
        """
        where = to_line(Where()) + b"\n"
        for line in requests:
            if line == where:
                faulthandler.dump_traceback(_STDERR)
                self.say(Whereabouts(computed=self._session.computed_steps if self._session else 0))
            else:
                self._lines.put(line)
        # At once: there is nobody to report to, and TensorFlow's threads may never end
        os._exit(0)

    def next(self) -> AnyRequest:
        """The next request, once there is one."""
        request: AnyRequest = from_line(self._lines.get(), AnyRequest)
        return request

    def say(self, message: Record) -> None:
        """Sends a reply, from any thread."""
        with self._one_at_a_time:
            self._replies.write(to_line(message) + b"\n")
            self._replies.flush()

    def answer(self, request: AnyRequest) -> None:
        """Does what is asked. Whatever the user's own code or TensorFlow raises is told to the
        parent.
        """
        if isinstance(request, Open):
            self._session, self._asked = None, request
        trains = not isinstance(request, Survey | Inspect | Copy | Reduce | Trace)
        try:
            for reply in self._done(request):
                self.say(reply)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.say(self._failed(error, self._asked if trains else None))

    def _done(self, request: AnyRequest) -> Iterator[Record]:
        session, asked = self._session, dict(request)
        match request:
            case Open():
                self._session = _opened(request)
                yield Ready(**self._session.facts())
            case CountFlops():
                yield Flops(step=session.step_flops())
            case Measure():
                for timing in session.measure(**asked):
                    yield timing
                    if request.at_once and self._is_stopped():
                        break
                yield self._measured(samples=session.source.samples)
            case Pull():
                yield from session.pull(**asked)
                joined_from = session.source.joined_from(request.global_batch)
                yield PulledAll(remedies=session.source.usual_remedies(), joined_from=joined_from)
            case Trace():
                yield Traced(missing=session.trace(**asked))
            case TimeBlocks() | Pipe():
                yield from (
                    session.time_blocks(**asked)
                    if isinstance(request, TimeBlocks)
                    else session.pipe(**asked)
                )
                yield self._measured()
            case Survey() | Inspect() | Copy() | Reduce():
                yield _checked(request)

    def _measured(self, samples: int | None = None) -> Measured:
        peaks, late_part = self._session.memory_peaks(), self._session.late_part()
        return Measured(memory_peak_bytes=peaks, late_part=late_part, samples=samples)

    def _is_stopped(self) -> bool:
        """Whether a Stop has come. No other request comes during a measurement."""
        return not self._lines.empty() and isinstance(self.next(), Stop)

    def _failed(self, error: BaseException, training: Open | None) -> Failed:
        """The reply for an error, of a session if there is `training`; out of memory, with what
        each device held.
        """
        from gpubalance.engine.failures import TaskFailedError, explain, tells_of_a_peer

        if isinstance(error, TaskFailedError):
            if error.__cause__ is None:
                return Failed(
                    fault="hang", message=str(error), replica=error.device, doing=error.doing
                )
            told = self._failed(error.__cause__, training)
            return told.model_copy(update={"replica": error.device, "doing": error.doing})
        devices = training.devices if training else ()
        # A worker sees only its devices, in their order.
        kind = "CPU" if devices and devices[0].simulated else "GPU"
        names = [f"{kind}:{number}" for number in range(len(devices))]
        found = explain(error, training.settings if training else None, names)
        about: dict[str, Any] = {
            "message": found.message,
            "cause": found.cause,
            "remedy": found.remedy,
        }
        if training and training.cluster and tells_of_a_peer(error):
            return Failed(fault="peer", **about)
        if isinstance(found, OutOfMemory):
            peaks = self._session.memory_peaks() if self._session else ()
            if found.fault is not None:
                about |= {"message": found.fault.message, "disguised": True}
            return Failed(fault="memory", replica=found.replica, memory_peak_bytes=peaks, **about)
        if isinstance(found, BadInput):
            return Failed(fault="refused" if isinstance(error, BadInput) else "input", **about)
        return Failed(fault="environment", **about)


def _opened(request: Open) -> Session | LayersSession:
    settings, cluster = request.settings, request.cluster
    if request.code is not None and code_key(settings.model, settings.data) != request.code:
        files = " or ".join(filter(None, (settings.model, settings.data)))
        own = request.devices[cluster.rank if cluster else 0]
        message = f"{files} on {own.host} is not the same as here, or is missing"
        raise BadInput(message, remedy="copy the file there, to the same folder")
    parts = request.devices, settings, request.joint
    if request.cuts is not None:
        from gpubalance.engine.pipeline.session import LayersSession

        return LayersSession(*parts, seed=request.seed, cuts=request.cuts)
    from gpubalance.engine.session import Session

    return Session(*parts, seed=request.seed, cluster=cluster, verdict=request.verdict)


def _load_engine() -> Failed | None:
    """Imports the engine, and TensorFlow with it, without touching a device. Returns the reply if
    that fails.
    """
    try:
        with lean_import():
            import gpubalance.engine.session  # noqa: F401
    except Exception as error:  # noqa: BLE001  (whatever a broken installation raises)
        traceback.print_exception(error)
        row = match(str(error)) or known_error("tensorflow-broken")
        message = f"{known_error('tensorflow-broken').message}: {type(error).__name__}: {error}"
        return Failed(
            fault="environment", message=message[:1000], cause=row.cause, remedy=row.remedy
        )
    return None


def _checked(request: Survey | Inspect | Copy | Reduce) -> Record:
    from gpubalance.engine import checks, gpus, runtime

    if isinstance(request, Survey):
        missing, growth = gpus.survey(request.devices)
        return Surveyed(missing=missing, memory_growth=growth)
    if isinstance(request, Inspect):
        return Inspected(**checks.inspect())
    names = runtime.use_devices(request.devices)
    if isinstance(request, Copy):
        return Copied(**checks.copy(names[request.source], names[request.target], request.nbytes))
    return Reduced(**checks.reduce(names, request.nbytes))


@contextmanager
def lean_import() -> Iterator[None]:
    """Shortens TensorFlow's import, the longest part of a worker's start, to 60 to 80 % of its
    time.

    Python searches again and again for garbage among hundreds of thousands of objects that all
    stay, and Keras loads matplotlib, if installed, for pictures that no worker draws. A user's
    model may still load it.
    """
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # Python's own way to mark a module as missing
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        del sys.modules["matplotlib"]
