"""The program of a worker's process: `python -m gpubalance.workers.serve REQUESTS REPLIES`, the numbers of two pipes.

It loads TensorFlow at once, before any request, so that a parent can start it before it is needed. Then it does one
request after the other, and ends by itself when its parent is gone. Its own stdout and stderr, where TensorFlow writes,
are a log file that the parent opened.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubalance.errors import BadInput, OutOfMemory
from gpubalance.remedies import known, match
from gpubalance.settings.record import Record
from gpubalance.settings.requests import Settings
from gpubalance.workers.code import code_key
from gpubalance.workers.imports import lean_import
from gpubalance.workers.layers_messages import BlocksTimed, Describe, Described, Pipe, TimeBlocks
from gpubalance.workers.messages import (
    REQUEST,
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
    session: Any = None  # a Session, or a LayersSession
    with os.fdopen(int(arguments[1]), "w", encoding="utf-8") as replies:
        requests = _requests(int(arguments[0]), lambda: _say(replies, whereabouts(session)))
        # A user's model may be in the current folder, but TensorFlow's modules must not be found there.
        sys.path.append(str(Path.cwd()))
        broken = _load_engine()
        for line in iter(requests.get, None):
            request = REQUEST.validate_json(line)
            if broken is not None:
                _say(replies, broken)
            elif isinstance(request, Open):
                session = _open(request, replies)
            elif isinstance(request, Survey):
                _survey(request, replies)
            elif isinstance(request, Inspect | Copy | Reduce):
                _check(request, replies)
            elif session is not None and isinstance(request, Describe | TimeBlocks | Pipe):
                _layers(session, request, replies)
            elif session is not None and isinstance(request, CountFlops):
                _say(replies, Flops(step=session.step_flops()))
            elif session is not None and isinstance(request, Trace):
                _trace(session, request, replies)
            elif session is not None and isinstance(request, Measure):
                _measure(session, request, replies, requests)
            elif session is not None and isinstance(request, Pull):
                _pull(session, request, replies)


def _requests(descriptor: int, tell_where: Callable[[], None]) -> queue.Queue[str | None]:
    """The requests as they come. When the pipe closes, the parent is gone or done, and the process ends.

    This thread answers where the process is, as the main thread may hang.
    """
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        where = Where().model_dump_json() + "\n"
        with os.fdopen(descriptor, encoding="utf-8") as pipe:
            for line in pipe:
                tell_where() if line == where else lines.put(line)
        os._exit(0)  # at once: there is nobody to report to, and TensorFlow's threads may never end

    threading.Thread(target=read, daemon=True).start()
    return lines


_one_at_a_time = threading.Lock()


def _say(replies: Any, message: Record) -> None:
    with _one_at_a_time:
        replies.write(message.model_dump_json() + "\n")
        replies.flush()


def _open(request: Open, replies: Any) -> Session | LayersSession | None:
    settings, cluster = request.settings, request.cluster
    if cluster is not None and len(request.devices) == 1:  # it was told only its own GPU: the others are elsewhere
        request = request.model_copy(update={"devices": request.devices * len(cluster.addresses)})
    if request.code is not None and code_key(settings.model, settings.data) != request.code:
        files = " or ".join(filter(None, (settings.model, settings.data)))
        own = request.devices[cluster.rank if cluster else 0]
        message = f"{files} on {own.host} is not the same as here, or is missing"
        _say(replies, Failed(fault="input", message=message, remedy="copy the file there, to the same folder"))
        return None
    try:
        session = _session(request)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the user's own code, or TensorFlow's: told to the parent)
        _say(replies, _failed(error, settings, in_cluster=cluster is not None))
        return None
    _say(replies, Ready(**session.facts()))
    return session


def _session(request: Open) -> Session | LayersSession:
    parts = request.devices, request.settings, request.joint
    if request.layers:
        from gpubalance.engine.pipeline.session import LayersSession

        return LayersSession(*parts, seed=request.seed)
    from gpubalance.engine.session import Session

    return Session(*parts, seed=request.seed, cluster=request.cluster)


def _failed(
    error: BaseException,
    settings: Settings | None = None,
    session: Session | LayersSession | None = None,
    *,
    in_cluster: bool = False,
) -> Failed:
    """The reply for an error; out of memory, with what each device of the session held."""
    from gpubalance.engine.failures import TaskFailedError, explain, tells_of_a_peer

    if isinstance(error, TaskFailedError):
        if error.__cause__ is None:
            return Failed(fault="hang", message=str(error), replica=error.device, doing=error.doing)
        told = _failed(error.__cause__, settings, session)
        return told.model_copy(update={"replica": error.device, "doing": error.doing})
    found = explain(error, settings)
    if (in_cluster or (session is not None and session.in_cluster)) and tells_of_a_peer(error):
        return Failed(fault="peer", message=found.message)
    message: dict[str, Any] = {"message": found.message, "cause": found.cause, "remedy": found.remedy}
    if isinstance(found, OutOfMemory):
        peaks = session.memory_peaks() if session else ()
        return Failed(fault="memory", replica=found.replica, memory_peak_bytes=peaks, **message)
    if isinstance(error, BadInput):
        return Failed(fault="refused", **message)
    return Failed(fault="input" if isinstance(found, BadInput) else "environment", **message)


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


def _survey(request: Survey, replies: Any) -> None:
    from gpubalance.engine.runtime import survey

    try:
        missing, growth = survey(request.devices)
    except Exception as error:  # noqa: BLE001  (then no GPU can be used)
        missing = {d.uuid: f"TensorFlow: {type(error).__name__}: {error}"[:300] for d in request.devices}
        growth = None
    _say(replies, Surveyed(missing=missing, memory_growth=growth))


def _check(request: Inspect | Copy | Reduce, replies: Any) -> None:
    try:
        _say(replies, _checked(request))
    except Exception as error:  # noqa: BLE001  (whatever a check raises is reported to the parent)
        _say(replies, _failed(error))


def _checked(request: Inspect | Copy | Reduce) -> Inspected | Copied | Reduced:
    from gpubalance.engine import checks, runtime

    if isinstance(request, Inspect):
        return Inspected(**checks.inspect())
    names = runtime.use_devices(request.devices)
    if isinstance(request, Copy):
        return Copied(**checks.copy(names[request.source], names[request.target], request.nbytes))
    return Reduced(**checks.reduce(names, request.nbytes))


def _trace(session: Session, request: Trace, replies: Any) -> None:
    try:
        missing = session.trace(request.split, request.tracing)
    except Exception as error:  # noqa: BLE001  (whatever the profiler or the file system raises: there is no trace)
        traceback.print_exception(error)
        _say(replies, Failed(fault="environment", message=f"{type(error).__name__}: {error}"[:500]))
        return
    _say(replies, Traced(missing=missing))


def _measure(session: Session, request: Measure, replies: Any, requests: queue.Queue[str | None]) -> None:
    try:
        for timing in session.measure(
            request.split,
            seconds=request.seconds,
            at_least=request.at_least,
            steps_per_timing=request.steps_per_timing,
            stamped=request.stamped,
            at_once=request.at_once,
            pipeline=request.pipeline,
        ):
            _say(replies, timing)
            if request.at_once and _stopped(requests):
                break
    except Exception as error:  # noqa: BLE001  (whatever a step raises is reported to the parent)
        _say(replies, _failed(error, session.settings, session))
        return
    told = {"memory_peak_bytes": session.memory_peaks(), "late_part": session.late_part(), "samples": session.samples}
    _say(replies, Measured.model_validate(told))


def _layers(session: LayersSession, request: Describe | TimeBlocks | Pipe, replies: Any) -> None:
    asked = {name: value for name, value in request if name != "kind"}
    try:
        if isinstance(request, Describe):
            _say(replies, Described(graph=session.describe(**asked)))
            return
        for reply in session.time_blocks(**asked) if isinstance(request, TimeBlocks) else session.pipe(**asked):
            _say(replies, reply)
    except Exception as error:  # noqa: BLE001  (whatever a stage raises is reported to the parent)
        _say(replies, _failed(error, session.settings, session))
        return
    if isinstance(request, TimeBlocks):
        _say(replies, BlocksTimed())
    else:
        _say(replies, Measured(memory_peak_bytes=session.memory_peaks(), late_part=session.late_part()))


def _stopped(requests: queue.Queue[str | None]) -> bool:
    """Whether a Stop has come. No other request comes during a measurement."""
    try:
        return isinstance(REQUEST.validate_json(requests.get_nowait() or ""), Stop)
    except queue.Empty:
        return False


def _pull(session: Session, request: Pull, replies: Any) -> None:
    try:
        for one in session.pull(request.global_batch, seconds=request.seconds, at_least=request.at_least):
            _say(replies, one)
        told = PulledAll(remedies=session.usual_remedies(), joined_from=session.joined_from(request.global_batch))
    except Exception as error:  # noqa: BLE001  (whatever the user's own code raises is reported to the parent)
        _say(replies, _failed(error, session.settings, session))
        return
    _say(replies, told)


if __name__ == "__main__":
    main(sys.argv[1:])
