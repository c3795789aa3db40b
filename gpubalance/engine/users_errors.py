"""Errors of the user's own code: their frames, and the exceptions behind TensorFlow's errors.

TensorFlow calls Python for a generator, a PyDataset, and a `py_function` of a map or a step. Of
what is raised there it hands on the text only, in an error of its own. A generator of `fit` is
asked without it.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf

from gpubalance.engine.iterators import GeneratorFailedError
from gpubalance.engine.keras_patches import PYTHON_FUNCTION_CALL
from gpubalance.engine.replacing import act_always
from gpubalance.engine.user_functions import is_of_library, is_of_package
from gpubalance.errors import BadInput
from gpubalance.text import clean

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_TRACEBACK = "Traceback (most recent call last):\n"
_OF_A_PROCESS = "multiprocessing.pool.RemoteTraceback:"
# The lines behind a traceback's frames, which are indented, as far as the node that failed.
_RAISED = re.compile(
    r"^(?P<kind>[^\W\d][\w.]*)(?:: (?P<message>.*?))?\s*(?=\n\t \[\[|\Z)",
    re.MULTILINE | re.DOTALL,
)
_IN_DATASET = "Error in user-defined function passed to"
# Names of nodes, numbers and codes of errors, and a dataset's transformations.
_OF_TENSORFLOW = re.compile(
    rf"^\s*(\(\d+\) [A-Z_]+:\s*)?(\{{\{{[^}}]*\}}\}}\s*)*({_IN_DATASET} .* iterator: \S+ )?"
)
_LONGEST = 300  # characters of a message that are shown
_KEPT = 8  # exceptions: several threads may raise some at once
_Place: TypeAlias = tuple[str, int, str]  # a file, a line and a function


class _Kept:
    """The latest exceptions of Python functions that TensorFlow called, in whichever thread.

    They are kept, with all that their frames have, only while somebody may ask for them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._raised: deque[BaseException] = deque(maxlen=_KEPT)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        act_always({PYTHON_FUNCTION_CALL: self._call})
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._raised.clear()

    def _call(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except StopIteration:  # of a generator that has ended
            raise
        except Exception as error:
            with self._lock:
                if self._users:
                    self._raised.append(error)
            raise

    def find(self, kind: str, message: str) -> BaseException | None:
        """The latest one of a class of this name, to whose text notes may have been added."""
        name = kind.rpartition(".")[2]
        with self._lock:
            latest = list(reversed(self._raised))
        for error in latest:
            if type(error).__name__ == name and message.startswith(str(error).strip()):
                return error
        return None


_kept = _Kept()


def keeping_raised() -> AbstractContextManager[None]:
    """Inside the block the user's own exceptions are known, not only TensorFlow's text of them."""
    return _kept.in_use()


@dataclass(frozen=True)
class Raised:
    """An exception of the user's code.

    `kind` is its class's name with its module, `file` and `line` are the innermost of the user's.
    `original` is None of one that is known by TensorFlow's text only, as outside `keeping_raised`.
    """

    kind: str
    message: str
    file: str
    line: int
    original: BaseException | None = None

    @property
    def text(self) -> str:
        """Its type and message in one line, as Python shows them."""
        name = self.kind.rpartition(".")[2]
        return clean(f"{name}: {self.message}" if self.message else name, _LONGEST)

    @property
    def place(self) -> str:
        """`train.py, line 12`."""
        return f"{Path(self.file).name}, line {self.line}"

    def exception(self) -> BaseException | None:
        """The exception, or one of its class with its text; None if that class is not known."""
        if self.original is not None:
            return self.original
        kind = _class_of(self.kind)
        if kind is None:
            return None
        try:
            made = kind.__new__(kind, self.message)
            if type(made) is kind and str(made) == self.message:
                return made
        except Exception:  # noqa: BLE001, S110  (the user's class may want other arguments)
            pass
        # One whose text is not its only argument.
        return _with_text(kind, self.message)


def raised_by_own_code(error: BaseException) -> Raised | None:
    """The exception of the user's code that an error is, or that is behind TensorFlow's error.

    None if no line of the user's has to do with it.
    """
    if isinstance(error, tf.errors.OpError):
        return _raised_behind(str(error))
    places = _places_of_traceback(error)
    if not places:
        return None
    file, line, _ = _users_place(places)
    return Raised(type(error).__qualname__, str(error), file, line, error)


def _raised_behind(text: str) -> Raised | None:
    """The exception that the text of an error of TensorFlow's tells of."""
    # Tracebacks before the last one are of causes, and of the process in which a worker failed.
    before, header, last = text.rpartition(_TRACEBACK)
    raised = _RAISED.search(last) if header else None
    if raised is None:
        return None
    places = _places_in(last[: raised.start()])
    if not places:
        places = _places_in(before.partition(_OF_A_PROCESS)[2])
    if not places:
        return None
    kind = raised["kind"]
    message = (raised["message"] or "").strip()
    file, line, _ = _users_place(places)
    return Raised(kind, message, file, line, _kept.find(kind, message))


@contextmanager
def own_code_named(during: str) -> Iterator[None]:
    """Raises BadInput that names the user's exception first, in place of TensorFlow's error.

    That exception is its `__cause__`. Other errors pass through.
    """
    with keeping_raised():
        try:
            yield
        except (tf.errors.OpError, GeneratorFailedError) as failed:
            error: Exception = getattr(failed, "error", failed)
            raised = raised_by_own_code(error)
            if raised is None:
                raise error from error.__cause__
            raise BadInput(
                f"{raised.text} ({raised.place}), raised by your own code in {during}:\n"
                f"{own_frames(error)}".rstrip()
            ) from (raised.exception() or error)


def own_traceback(error: BaseException) -> str:
    """The user's own frames of an error's traceback, and its message.

    The frames of a graph stand in its text.
    """
    shown = own_frames(error)
    if isinstance(error, tf.errors.OpError):
        return shown + reason_of(error)
    return (shown + "".join(traceback.format_exception_only(error))).rstrip()


def own_frames(error: BaseException) -> str:
    """The user's own frames of an error's traceback, also of one in a graph's text."""
    own = dict.fromkeys([*_places_of_traceback(error), *_places_in(str(error))])
    # Without columns: no expression is underlined.
    return "".join(
        traceback.format_list([traceback.FrameSummary(*place) for place in own])
    )


def reason_of(error: BaseException) -> str:
    """An error's message in one line, without TensorFlow's own names before it.

    That is an exception of the user's code, else the first line, of a step's error the one before
    its node. It begins with the error's type, or another's.
    """
    if isinstance(error, tf.errors.OpError):
        raised = _raised_behind(str(error))
        if raised is not None:
            return raised.text
    text, node, _ = str(error).strip().partition("\n\t [[{{node")
    lines = text.splitlines() or [""]
    is_first = _IN_DATASET in lines[0] or not node
    line = _OF_TENSORFLOW.sub("", lines[0 if is_first else -1])
    if ":" not in line[:60]:
        line = f"{type(error).__name__}: {line}"
    return clean(line, _LONGEST)


def _places_of_traceback(error: BaseException) -> list[_Place]:
    """The places of the user's own frames in an error's traceback."""
    places = []
    for frame in traceback.extract_tb(error.__traceback__):
        places.append((frame.filename, frame.lineno or 0, frame.name))
    return [place for place in places if not is_of_library(place[0])]


def _places_in(text: str) -> list[_Place]:
    """The places of the user's own frames in a text."""
    places = []
    for file, line, name in _FRAME.findall(text):
        is_rooted = file.startswith(("/", "<"))  # XLA leaves the first slash out
        places.append((file if is_rooted else f"/{file}", int(line), name))
    return [place for place in places if not is_of_library(place[0])]


def _users_place(places: Sequence[_Place]) -> _Place:
    """The innermost place, in no package that the user has installed if there is such a one."""
    return next(
        (place for place in reversed(places) if not is_of_package(place[0])), places[-1]
    )


def _class_of(name: str) -> type[BaseException] | None:
    """The class of exceptions of this name, of those that there are; the latest of several."""
    found = None
    for kind in _subclasses(BaseException):
        if f"{kind.__module__}.{kind.__qualname__}" == name:
            return kind
        if name in (kind.__name__, kind.__qualname__):
            found = kind
    return found


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in type.__subclasses__(kind):
        yield subclass
        yield from _subclasses(subclass)


def _with_text(kind: type[BaseException], text: str) -> BaseException | None:
    """An exception of a subclass that has the class's own name, and this text."""

    def shown(_: BaseException) -> str:
        return text

    own = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    try:
        named: Any = type(kind.__name__, (kind,), {"__str__": shown, **own})
        raised: BaseException = named.__new__(named, text)
        return raised
    except Exception:  # noqa: BLE001  (a class may refuse subclasses)
        return None
