"""The program of a worker's process, started with the numbers of two pipes: for requests, and for replies.

It loads TensorFlow at once, before any request, so that a parent can start it before it is needed. Then it does one
request after the other, and ends by itself when its requests do. Its own stdout and stderr, where TensorFlow writes,
are a log file that the parent opened.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubalance.errors import BadInput, OutOfMemory
from gpubalance.remedies import known, match
from gpubalance.settings.record import Record
from gpubalance.settings.requests import Settings
from gpubalance.workers.code import code_key
from gpubalance.workers.imports import lean_import
from gpubalance.workers.layers_messages import Describe, Described, Pipe, TimeBlocks
from gpubalance.workers.messages import (
    REQUEST,
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
    Pull,
    PulledAll,
    Ready,
    Reduce,
    Reduced,
    Stop,
    Survey,
    Surveyed,
    Trace,
    Traced,
    Where,
)
from gpubalance.workers.whereabouts import whereabouts

if TYPE_CHECKING:
    from gpubalance.engine.pipeline.session import LayersSession
    from gpubalance.engine.session import Session


def main(arguments: list[str]) -> None:
    """Serves until the parent closes its end of the pipe."""
    requests, replies = map(int, arguments)
    serving = _Serving(replies)
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
        self._settings: Settings | None = None
        self._in_cluster = False
        self._lines = queue.SimpleQueue[str]()
        self._replies = os.fdopen(replies, "w", encoding="utf-8")
        self._one_at_a_time = threading.Lock()

    def read(self, requests: int) -> None:
        """Takes requests as they come. When the pipe closes, the parent is gone or done, and the process ends.

        This thread answers where the process is, as the main thread may hang.
        """
        where = Where().model_dump_json() + "\n"
        with os.fdopen(requests, encoding="utf-8") as pipe:
            for line in pipe:
                if line == where:
                    self.say(whereabouts(self._session))
                else:
                    self._lines.put(line)
        os._exit(0)  # at once: there is nobody to report to, and TensorFlow's threads may never end

    def next(self) -> AnyRequest:
        """The next request, once there is one."""
        return REQUEST.validate_json(self._lines.get())

    def say(self, message: Record) -> None:
        """Sends a reply, from any thread."""
        with self._one_at_a_time:
            self._replies.write(message.model_dump_json() + "\n")
            self._replies.flush()

    def answer(self, request: AnyRequest) -> None:
        """Does what is asked. Whatever the user's own code or TensorFlow raises is told to the parent."""
        is_training = not isinstance(request, Survey | Inspect | Copy | Reduce | Trace)
        if isinstance(request, Open):
            self._session, self._settings, self._in_cluster = None, request.settings, request.cluster is not None
        try:
            for reply in self._done(request):
                self.say(reply)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.say(self._failed(error, is_training=is_training))

    def _done(self, request: AnyRequest) -> Iterator[Record]:
        session, asked = self._session, {name: value for name, value in request if name != "kind"}
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
                yield Traced(missing=session.trace(request.split, request.tracing))
            case Describe():
                yield Described(graph=session.describe(**asked))
            case TimeBlocks() | Pipe():
                yield from session.time_blocks(**asked) if isinstance(request, TimeBlocks) else session.pipe(**asked)
                yield self._measured()
            case Survey() | Inspect() | Copy() | Reduce():
                yield _checked(request)

    def _measured(self, samples: int | None = None) -> Measured:
        peaks, late_part = self._session.memory_peaks(), self._session.late_part()
        return Measured(memory_peak_bytes=peaks, late_part=late_part, samples=samples)

    def _is_stopped(self) -> bool:
        """Whether a Stop has come. No other request comes during a measurement."""
        return not self._lines.empty() and isinstance(self.next(), Stop)

    def _failed(self, error: BaseException, *, is_training: bool) -> Failed:
        """The reply for an error; out of memory, with what each device held."""
        from gpubalance.engine.failures import TaskFailedError, explain, tells_of_a_peer

        if isinstance(error, TaskFailedError):
            if error.__cause__ is None:
                return Failed(fault="hang", message=str(error), replica=error.device, doing=error.doing)
            told = self._failed(error.__cause__, is_training=is_training)
            return told.model_copy(update={"replica": error.device, "doing": error.doing})
        found = explain(error, self._settings if is_training else None)
        if is_training and self._in_cluster and tells_of_a_peer(error):
            return Failed(fault="peer", message=found.message)
        message: dict[str, Any] = {"message": found.message, "cause": found.cause, "remedy": found.remedy}
        if isinstance(found, OutOfMemory):
            peaks = self._session.memory_peaks() if self._session else ()
            return Failed(fault="memory", replica=found.replica, memory_peak_bytes=peaks, **message)
        if isinstance(error, BadInput):
            return Failed(fault="refused", **message)
        return Failed(fault="input" if isinstance(found, BadInput) else "environment", **message)


def _opened(request: Open) -> Session | LayersSession:
    settings, cluster = request.settings, request.cluster
    if cluster is not None and len(request.devices) == 1:  # it was told only its own GPU: the others are elsewhere
        request = request.model_copy(update={"devices": request.devices * len(cluster.addresses)})
    if request.code is not None and code_key(settings.model, settings.data) != request.code:
        files = " or ".join(filter(None, (settings.model, settings.data)))
        own = request.devices[cluster.rank if cluster else 0]
        message = f"{files} on {own.host} is not the same as here, or is missing"
        raise BadInput(message, remedy="copy the file there, to the same folder")
    parts = request.devices, settings, request.joint
    if request.layers:
        from gpubalance.engine.pipeline.session import LayersSession

        return LayersSession(*parts, seed=request.seed)
    from gpubalance.engine.session import Session

    return Session(*parts, seed=request.seed, cluster=cluster)


def _load_engine() -> Failed | None:
    """Imports the engine, and TensorFlow with it, without touching a device. Returns the reply if that fails."""
    try:
        with lean_import():
            import gpubalance.engine.session  # noqa: F401
    except Exception as error:  # noqa: BLE001  (whatever a broken installation raises)
        traceback.print_exception(error)
        row = match(str(error)) or known("tensorflow-broken")
        message = f"{known('tensorflow-broken').message}: {type(error).__name__}: {error}"
        return Failed(fault="environment", message=message[:1000], cause=row.cause, remedy=row.remedy)
    return None


def _checked(request: Survey | Inspect | Copy | Reduce) -> Record:
    from gpubalance.engine import checks, runtime

    if isinstance(request, Survey):
        missing, growth = runtime.survey(request.devices)
        return Surveyed(missing=missing, memory_growth=growth)
    if isinstance(request, Inspect):
        return Inspected(**checks.inspect())
    names = runtime.use_devices(request.devices)
    if isinstance(request, Copy):
        return Copied(**checks.copy(names[request.source], names[request.target], request.nbytes))
    return Reduced(**checks.reduce(names, request.nbytes))
