"""Turns what went wrong in the engine into the error that ends the command."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from gpubalance.errors import (
    BadInput,
    Bug,
    EnvironmentFault,
    GpubalanceError,
    OutOfMemory,
)
from gpubalance.remedies import KnownError, known_error, match
from gpubalance.settings.settings import Settings
from gpubalance.system.files import is_about_files, log_traceback

# What CUDA, cuDNN, cuBLAS and NCCL raise; a model's own mistakes raise InvalidArgument or Python's
# errors.
_OF_THE_DEVICE = (
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
)
# What is raised in whatever code needs TensorFlow, the system or an installation.
_OF_THE_SYSTEM = (tf.errors.OpError, OSError, MemoryError, ImportError)
_OWN_CODE = Path(__file__).parents[1]
# What TensorFlow raises when another process of a cluster has ended or fallen silent.
_OF_A_PEER = (
    *_OF_THE_DEVICE[1:],
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
# The device that a copy goes to, whose memory is full: the text names the source first.
_COPIED_TO = re.compile(
    r"(?:Key: [^;\s]+;[0-9a-f]+;|Failed copying input tensor from \S+ to )([^;\s]+)"
)
_DEVICE = (
    re.compile(r"device:(GPU:\d+)", re.IGNORECASE),
    re.compile(r"(GPU_\d+)_bfc"),
    re.compile(r"device:(CPU:\d+)", re.IGNORECASE),
)
# What comes before the reason: the number of several errors of one step, and the function's name.
_BEFORE_REASON = re.compile(r"^(\(\d+\) [A-Z_]+:\s*)?(\{\{function_node [^}]*\}\}\s*)?")
_SIMULATED = re.compile(r"OOM on replica (\d+)")
_NODE = re.compile(r"\breplica_(\d+)/")


class TaskFailedError(Exception):
    """A pipeline's task failed: its `__cause__` is the reason. Without a cause the task hangs."""

    def __init__(self, device: int, doing: str) -> None:
        super().__init__(f"{doing} on device {device}")
        self.device = device
        self.doing = doing


def used_before(how: str) -> EnvironmentFault:
    """The error of a process whose TensorFlow, set up only once, lacks what a split needs."""
    row = known_error("used-before")
    return EnvironmentFault(
        f"{row.message}, and {how}", cause=row.cause, remedy=row.remedy
    )


def explain(
    error: BaseException, settings: Settings | None = None, names: Sequence[str] = ()
) -> GpubalanceError:
    """What the error is: memory, the user's model or flags, the environment, or a bug of ours.

    It logs the traceback.

    `settings` are those of the training that failed, None for a check of `doctor`. `names` are
    TensorFlow's for the replicas' devices, `GPU:0`.
    """
    if isinstance(error, GpubalanceError):
        return error
    log_traceback(error)
    if _is_bug(error, settings):
        text = f"{type(error).__name__}: {_line(error)}"
        return Bug(text, report="the lines above")
    if settings is None:
        fault: GpubalanceError = EnvironmentFault(
            f"{type(error).__name__}: {_line(error)}"
        )
    else:
        fault = _of_training(error, settings, names)
    if fault.remedy:
        return fault
    # The table knows TensorFlow's and Keras' texts; a user's own exception may say anything.
    row = match(str(error))
    if row:
        fault.cause = row.cause
        fault.remedy = row.remedy
    return fault


def _is_bug(error: BaseException, settings: Settings | None) -> bool:
    """Whether Python raised it in gpubalance's own code, while no code of the user's took part."""
    if settings is not None and (":" in settings.model or settings.data):
        return False
    if isinstance(error, _OF_THE_SYSTEM) or error.__traceback__ is None:
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return Path(frame.f_code.co_filename).is_relative_to(_OWN_CODE)


def tells_of_a_peer(error: BaseException) -> bool:
    """Whether the error in one process of a cluster reports what happened to another."""
    return isinstance(error, _OF_A_PEER)


def _of_training(
    error: BaseException, settings: Settings, names: Sequence[str]
) -> GpubalanceError:
    text = str(error)
    line = _line(error)
    model = settings.model
    if isinstance(error, MemoryError):
        return EnvironmentFault(
            f"this host has too little memory: {line}", remedy="use smaller batches"
        )
    cancelled = (
        isinstance(error, tf.errors.CancelledError) and "RESOURCE_EXHAUSTED" in text
    )
    if cancelled or isinstance(error, tf.errors.ResourceExhaustedError):
        if is_about_files(text):
            return EnvironmentFault(f"training {model} failed: {line}")
        return OutOfMemory(line, replica=failing_replica(text, names))
    row = memory_row(error)
    if row:
        reason = _shown(next(part for part in text.splitlines() if match(part) is row))
        message = f"training {model} failed on the device: {reason}"
        fault = EnvironmentFault(message, cause=row.cause, remedy=row.remedy)
        return OutOfMemory(reason, replica=failing_replica(text, names), fault=fault)
    if isinstance(error, _OF_THE_DEVICE) and "ompil" not in text:
        return EnvironmentFault(f"training {model} failed on the device: {line}")
    if settings.xla and "xla" in text.lower():
        remedy = "use --no-xla"
        if match(text):
            remedy = ""
        return BadInput(f"{model} does not compile with XLA: {line}", remedy=remedy)
    if ":" in model:
        # It needs Keras, which is not there for every worker.
        from gpubalance.engine.users_errors import own_traceback

        remedy = ""
        if isinstance(error, ModuleNotFoundError):
            remedy = f"install {error.name}, or start in the folder that contains it"
        return BadInput(
            f"--model {model} failed:\n{own_traceback(error)}", remedy=remedy
        )
    if settings.data:
        return BadInput(
            f"--data {settings.data} does not fit the model {model}: {line}"
        )
    return EnvironmentFault(f"training {model} failed: {type(error).__name__}: {line}")


def memory_row(error: BaseException) -> KnownError | None:
    """The row of an error by which cuDNN, cuBLAS or NCCL may report a lack of memory, else None."""
    if not isinstance(error, tf.errors.OpError):
        return None
    row = match(str(error))
    if row is None or not row.memory:
        return None
    return row


def failing_replica(text: str, names: Sequence[str]) -> int | None:
    """The replica whose memory an error's text is about, or None.

    `names` are TensorFlow's names of the replicas' devices; in a text of GPUs the CPU is the host.
    """
    simulated = _SIMULATED.search(text)
    if simulated:
        return int(simulated[1])
    copied = _COPIED_TO.search(text)
    if copied:
        text = copied[1]
    for pattern in _DEVICE:
        device = pattern.search(text)
        if device:
            name = device[1].upper().replace("_", ":")
            if name in names:
                return names.index(name)
    node = _NODE.search(text)
    if node is None:
        return None
    return int(node[1])


def _line(error: BaseException) -> str:
    """An error's text in one line: its first, or for a step's error the one before the node."""
    before, node, _ = str(error).strip().partition("\n\t [[{{node")
    lines = before.splitlines() or [""]
    if node:
        return _shown(lines[-1])
    return _shown(lines[0])


def _shown(line: str) -> str:
    return _BEFORE_REASON.sub("", line.strip())[:500]
