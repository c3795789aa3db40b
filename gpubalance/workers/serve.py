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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubalance.errors import BadInput
from gpubalance.remedies import known_error, match
from gpubalance.settings.code import code_key
from gpubalance.settings.record import Record
from gpubalance.system.files import log_traceback
from gpubalance.workers.failures import failed_reply, of_untested
from gpubalance.workers.messages import (
    AnyRequest,
    Check,
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
    PrefetchedAll,
    Progress,
    Pull,
    QueryProgress,
    Ready,
    Reduce,
    Reduced,
    Stop,
    SumsTimed,
    Survey,
    Surveyed,
    TimeBlocks,
    TimeSums,
    Trace,
    Traced,
    from_line,
    to_line,
)

if TYPE_CHECKING:
    from gpubalance.engine.pipeline.session import LayersSession
    from gpubalance.engine.session import Session

# The real ones, whatever a user's program has assigned to sys.stderr
_STDIN = 0
_STDERR = 2


def main(replies: int) -> None:
    """Serves until the parent closes its end of stdin, where the requests come.

    `replies` is the number of a pipe.
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
            serving.reply(broken)
        else:
            serving.answer(request)


class _Serving:
    """The worker: its model, once it is open, what it is asked and where it replies."""

    def __init__(self, replies: int) -> None:
        self._session: Any = None  # a Session, or a LayersSession
        self._opened: Open | None = None  # what the session was made for
        self._lines = queue.SimpleQueue[bytes]()
        self._replies = os.fdopen(replies, "wb")
        self._one_at_a_time = threading.Lock()

    def read(self, requests: Any) -> None:
        """Takes requests as they come.

        When the pipe closes, the parent is gone or done, and the process ends. This thread answers
        where the process is, as the main thread may hang.
        """
        where = to_line(QueryProgress()) + b"\n"
        for line in requests:
            if line == where:
                faulthandler.dump_traceback(_STDERR)
                computed = self._session.computed_steps if self._session else 0
                self.reply(Progress(computed=computed))
            else:
                self._lines.put(line)
        # At once: there is nobody to report to, and TensorFlow's threads may never end
        os._exit(0)

    def next(self) -> AnyRequest:
        """The next request, once there is one."""
        request: AnyRequest = from_line(self._lines.get(), AnyRequest)
        return request

    def reply(self, message: Record) -> None:
        """Sends a reply, from any thread."""
        with self._one_at_a_time:
            self._replies.write(to_line(message) + b"\n")
            self._replies.flush()

    def answer(self, request: AnyRequest) -> None:
        """Does what is asked, and reports to the parent whatever that raises.

        The user's own code and TensorFlow may raise anything.
        """
        if isinstance(request, Open):
            self._session = None
            self._opened = request
        training = None if isinstance(request, Check | Trace) else self._opened
        try:
            for message in self._done(request):
                self.reply(message)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.reply(failed_reply(error, training, self._memory_peaks))

    def _done(self, request: AnyRequest) -> Iterator[Record]:
        session = self._session
        match request:
            case Open():
                self._session = _open(request)
                yield Ready(**self._session.facts())
            case CountFlops():
                yield Flops(step=session.step_flops())
            case Measure():
                timings = session.measure(
                    request.split,
                    seconds=request.seconds,
                    at_least=request.at_least,
                    steps_per_timing=request.steps_per_timing,
                    stamped=request.stamped,
                    at_once=request.at_once,
                    pipeline=request.pipeline,
                )
                for timing in timings:
                    yield timing
                    if request.at_once and self._is_stopped():
                        break
                yield self._measured(samples=session.source.samples)
            case Pull():
                yield from session.pull(
                    request.global_batch,
                    seconds=request.seconds,
                    at_least=request.at_least,
                )
                joined_from = session.source.joined_from(request.global_batch)
                yield PrefetchedAll(
                    remedies=session.source.usual_remedies(), joined_from=joined_from
                )
            case Trace():
                yield Traced(missing=session.trace(request.split, request.tracing))
            case TimeSums():
                yield SumsTimed(
                    seconds=session.time_sums(request.groups, request.nbytes)
                )
            case TimeBlocks():
                yield from session.time_blocks(
                    request.blocks,
                    request.micro_batch,
                    seconds=request.seconds,
                    at_least=request.at_least,
                )
                yield self._measured()
            case Pipe():
                yield from session.pipe(
                    request.segments,
                    request.order,
                    request.micro_batch,
                    request.micro_batches,
                    seconds=request.seconds,
                    at_least=request.at_least,
                    steps_per_timing=request.steps_per_timing,
                    stamped=request.stamped,
                    patience_s=request.patience_s,
                )
                yield self._measured()
            case Survey() | Inspect() | Copy() | Reduce():
                yield _checked(request)

    def _measured(self, samples: int | None = None) -> Measured:
        return Measured(
            memory_peak_bytes=self._session.memory_peaks(),
            late_part=self._session.late_part(),
            samples=samples,
        )

    def _is_stopped(self) -> bool:
        """Whether a Stop has come. No other request comes during a measurement."""
        return not self._lines.empty() and isinstance(self.next(), Stop)

    def _memory_peaks(self) -> tuple[int | None, ...]:
        """What each device has held; empty before the model is built."""
        return self._session.memory_peaks() if self._session else ()


def _open(request: Open) -> Session | LayersSession:
    settings = request.settings
    cluster = request.cluster
    if (
        request.code is not None
        and code_key(settings.model, settings.data) != request.code
    ):
        files = " or ".join(filter(None, (settings.model, settings.data)))
        own = request.devices[cluster.rank if cluster else 0]
        message = f"{files} on {own.host} differs from the file here, or is missing"
        raise BadInput(message, remedy="copy the file there, to the same folder")
    parts = request.devices, settings, request.joint
    if request.cuts is not None:
        from gpubalance.engine.pipeline.session import LayersSession

        return LayersSession(*parts, seed=request.seed, cuts=request.cuts)
    from gpubalance.engine.session import Session

    return Session(
        *parts, seed=request.seed, cluster=cluster, combine_rules=request.combine_rules
    )


def _load_engine() -> Failed | None:
    """Imports the engine, and TensorFlow with it, without touching a device.

    Returns the reply if that fails.
    """
    try:
        with lean_import():
            import gpubalance.engine.session  # noqa: F401
    except Exception as error:  # noqa: BLE001  (whatever a broken installation raises)
        log_traceback(error)
        broken = known_error("tensorflow-broken")
        message = f"{broken.message}: {type(error).__name__}: {error}"[:1000]
        row = match(str(error))
        if row is None:
            reply = of_untested(message)
            if reply is not None:
                return reply
            row = broken
        return Failed(
            fault="environment", message=message, cause=row.cause, remedy=row.remedy
        )
    return None


def _checked(request: Check) -> Record:
    from gpubalance.engine import checks, runtime

    if isinstance(request, Survey):
        missing, growth = runtime.survey(request.devices)
        return Surveyed(missing=missing, memory_growth=growth)
    if isinstance(request, Inspect):
        return Inspected(**checks.inspect())
    names = runtime.use_devices(request.devices)
    if isinstance(request, Copy):
        return Copied(
            **checks.copy(names[request.source], names[request.target], request.nbytes)
        )
    return Reduced(**checks.reduce(names, request.nbytes))


@contextmanager
def lean_import() -> Iterator[None]:
    """Shortens TensorFlow's import, the longest part of a worker's start, to 60 to 80 %.

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
