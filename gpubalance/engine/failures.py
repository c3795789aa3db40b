"""What went wrong in a step or while a model was built, in terms that a parent process can act on."""

from __future__ import annotations

import os
import re
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tensorflow as tf

from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.remedies import match
from gpubalance.settings.requests import Settings

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
# What CUDA, cuDNN, cuBLAS and NCCL raise; a model's own mistakes are InvalidArgument and Python's errors.
_OF_THE_DEVICE = (tf.errors.InternalError, tf.errors.UnavailableError, tf.errors.AbortedError)
_REPLICA = (
    re.compile(r"OOM on replica (\d+)"),  # a simulated device
    re.compile(r"device:(?:GPU|CPU):(\d+)", re.IGNORECASE),
    re.compile(r"GPU_(\d+)_bfc"),
    re.compile(r"\breplica_(\d+)/"),
)


@dataclass(frozen=True)
class Failure:
    """`fault` says whose: the device's memory, the user's model or flags, or the step's."""

    fault: Literal["memory", "input", "step"]
    message: str
    cause: str = ""
    remedy: str = ""
    replica: int | None = None


def explain(error: BaseException, settings: Settings) -> Failure:
    """Sorts an exception from building or training a model. The whole of it goes to the log as well."""
    traceback.print_exception(error)
    failure = _sorted(error, settings)
    # A user's own exception may say anything; TensorFlow's and Keras' texts are what the table knows.
    row = None if failure.remedy else match(str(error))
    return replace(failure, cause=row.cause, remedy=row.remedy) if row else failure


def explain_check(error: Exception) -> Failure:
    """The same of a check, which trains nothing."""
    traceback.print_exception(error)
    if isinstance(error, GpubalanceError):
        return Failure("step", error.message, error.cause, error.remedy)
    text = _first_line(str(error))
    row = match(str(error))
    return Failure("step", f"{type(error).__name__}: {text}", *((row.cause, row.remedy) if row else ()))


def _sorted(error: BaseException, settings: Settings) -> Failure:
    text = str(error)
    if isinstance(error, BadInput):
        return Failure("input", error.message, error.cause, error.remedy)
    if isinstance(error, MemoryError):
        return Failure(
            "step", f"this host's memory does not hold it: {_first_line(text)}", remedy="use smaller batches"
        )
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return Failure("memory", _first_line(text, "OOM"), replica=failing_replica(text))
    if isinstance(error, _OF_THE_DEVICE) and "ompil" not in text:
        return Failure("step", f"training {settings.model} failed on the device: {_first_line(text)}")
    if settings.xla and "xla" in text.lower():
        row = match(text)
        return Failure(
            "input",
            f"{settings.model} does not compile with XLA: {_first_line(text)}",
            *((row.cause, row.remedy) if row else ("", "use --no-xla")),
        )
    if ":" in settings.model:
        return Failure("input", f"--model {settings.model} failed:\n{_own_traceback(error)}")
    return Failure("step", f"training {settings.model} failed: {type(error).__name__}: {_first_line(text)}")


def failing_replica(text: str) -> int | None:
    """Which replica an out-of-memory text of TensorFlow is about; None where it does not say."""
    for pattern in _REPLICA:
        match = pattern.search(text)
        if match:
            return int(match[1])
    return None


def _first_line(text: str, holding: str = "") -> str:
    """The first line that says something, of TensorFlow's many."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and holding in line]
    return (lines or [text.strip()])[0][:500]


def _own_traceback(error: BaseException) -> str:
    """The traceback from the user's own first frame on: our frames above it say nothing to them."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, f in enumerate(frames) if not f.filename.startswith((_PACKAGE, "<frozen importlib"))]
    shown = frames[own[0] :] if own else []
    return "".join(traceback.format_list(shown) + traceback.format_exception_only(error)).rstrip()
