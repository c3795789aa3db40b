"""What the worker tells its parent of an exception.

It tells cause and remedy where the text is known, and only there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpubalance.errors import (
    BadInput,
    Bug,
    EnvironmentFault,
    GpubalanceError,
    OutOfMemory,
)
from gpubalance.remedies import known_error
from gpubalance.settings.settings import Settings
from tests.support.late import tf

SETTINGS = Settings(model="small")
USERS = Settings(model="mine.py:model")


def explain(
    error: BaseException, settings: Settings | None = None, names: Sequence[str] = ()
) -> GpubalanceError:
    from gpubalance.engine import failures

    return failures.explain(error, settings, names)


def test_tensorflows_errors_are_known_by_their_texts() -> None:
    """By those of tests/test_remedies.py, whatever their class."""
    errors = tf.errors
    for error, code in (
        (errors.InternalError(None, None, "Dst tensor is not initialized."), "no-room"),
        (
            errors.InvalidArgumentError(
                None, None, "Incompatible shapes: [32,10] vs. [16,10]"
            ),
            "incompatible-shapes",
        ),
        (
            errors.CancelledError(
                None, None, "RESOURCE_EXHAUSTED: a step was cancelled"
            ),
            "out-of-memory",
        ),
    ):
        failure = explain(error, SETTINGS)
        assert (failure.cause, failure.remedy) == (
            known_error(code).cause,
            known_error(code).remedy,
        )


@pytest.mark.parametrize("settings", [SETTINGS, USERS], ids=["ours", "the user's"])
def test_a_mistake_in_a_model_is_called_nothing_else(settings: Settings) -> None:
    kind = BadInput if settings is USERS else EnvironmentFault
    for text in (
        "Shapes (32, 10) and (16, 10) are incompatible",
        "Incompatible shapes: [32,10] vs. [32,11]",
    ):
        for error in (
            ValueError(text),
            tf.errors.InvalidArgumentError(None, None, text),
        ):
            failure = explain(error, settings)
            assert (failure.cause, failure.remedy) == ("", "")
            assert text in failure.message
            assert isinstance(failure, kind)


def test_a_bug_is_never_the_environments_whatever_it_quotes() -> None:
    from gpubalance.workers.failed import error_of, failed_reply

    for settings in (SETTINGS, None):
        with pytest.raises(KeyError) as caught:
            known_error("No space left on device")  # raised in gpubalance's own code
        bug = explain(caught.value, settings)
        assert (type(bug), bug.exit_code, bug.cause) == (Bug, 1, "")
        assert bug.message == "a bug in gpubalance: KeyError: 'No space left on device'"
    told = error_of(failed_reply(caught.value, None, tuple), [], None, Path("its.log"))
    assert (told.message, told.cause) == (bug.message, "")
    assert told.remedy == "report it with the worker's whole log, its.log"
    with pytest.raises(OSError, match="No space left") as full:
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")
    assert explain(full.value, SETTINGS).remedy == known_error("disk-full").remedy


def test_an_error_of_a_graph_is_told_at_the_users_own_line() -> None:
    import keras

    text = (
        "Graph execution error:\n\nDetected at node TopKV2 defined at (most recent call last):\n"
        f'  File "{Path(keras.__file__).parent}/src/losses/loss.py", line 67, in __call__\n\n'
        '  File "/home/me/mine.py", line 5, in hardest\n\n'
        "2 root error(s) found.\n  (0) INVALID_ARGUMENT:  input must have at least k columns. "
        "Had 3, needed 5\n"
        "\t [[{{node replica_1/TopKV2}}]]\n0 successful operations."
    )
    failure = explain(tf.errors.InvalidArgumentError(None, None, text), USERS)
    assert failure.message.splitlines() == [
        "--model mine.py:model failed:",
        '  File "/home/me/mine.py", line 5, in hardest',
        "InvalidArgumentError: input must have at least k columns. Had 3, needed 5",
    ]


def test_xla_without_its_tools_says_how_to_get_them() -> None:
    settings = SETTINGS.model_copy(update={"xla": True})
    remedies = {
        "libdevice not found at ./libdevice.10.bc [xla]": known_error(
            "xla-tools"
        ).remedy,
        "no XLA": "use --no-xla",
    }
    for text, remedy in remedies.items():
        assert (
            explain(tf.errors.InvalidArgumentError(None, None, text), settings).remedy
            == remedy
        )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_full_disk_is_no_lack_of_memory(number: int) -> None:
    """TensorFlow raises the same for both: a batch limit was told where a disk was full."""
    full = tf.errors.ResourceExhaustedError(
        None, None, f"/data/cache.data-00000-of-00001; {os.strerror(number)}"
    )
    settings = Settings(model="small")
    found = explain(full, settings)
    assert isinstance(found, EnvironmentFault)
    if number == errno.ENOSPC:
        assert found.remedy == known_error("disk-full").remedy
    full_memory = tf.errors.ResourceExhaustedError(None, None, SHAPED.format("GPU:0"))
    assert isinstance(explain(full_memory, settings), OutOfMemory)


def test_a_check_tells_its_error_too() -> None:
    failure = explain(
        tf.errors.InternalError(None, None, "NCCL: unhandled system error.")
    )
    assert failure.remedy == known_error("nccl-system").remedy
    own = EnvironmentFault("it lacks one", cause="of this", remedy="do that")
    assert explain(own) is own


# TensorFlow's text on a copy within a step: from where, an incarnation, to where, which edge.
COPY = (
    "SameWorkerRecvDone unable to allocate output tensor. Key: "
    "/job:localhost/replica:0/task:0/device:{};"
    "899591e1dcfebd12;/job:localhost/replica:0/task:0/device:{};edge_11_IteratorGetNext;0:0\n"
    "\t [[{{{{node replica_1/IteratorGetNext/_2}}}}]]"
)
SHAPED = "OOM when allocating tensor with shape[820,64] on /job:localhost/replica:0/task:0/device:{} by"


@pytest.mark.parametrize(
    ("text", "kind", "replica"),
    [
        ("MemoryError: OOM on replica 1: batch 710 needs 9 bytes of 8", "CPU", 1),
        (SHAPED.format("GPU:1"), "GPU", 1),
        (SHAPED.format("CPU:1"), "CPU", 1),
        (SHAPED.format("CPU:0"), "GPU", None),  # the host
        (COPY.format("CPU:0", "GPU:1"), "GPU", 1),
        (COPY.format("GPU:0", "GPU:1"), "GPU", 1),
        (COPY.format("GPU:1", "CPU:0"), "GPU", None),
        (COPY.format("CPU:0", "CPU:1"), "CPU", 1),
        ("device:CPU:0 waits for device:GPU:1", "GPU", 1),
        ("Allocator (GPU_1_bfc) ran out of memory trying to allocate 1.2GiB", "GPU", 1),
        ("failed to allocate memory [[{{node replica_2/conv/Conv2D}}]]", "GPU", 2),
        ("out of memory", "GPU", None),
    ],
)
def test_whose_an_out_of_memory_is(text: str, kind: str, replica: int | None) -> None:
    from gpubalance.engine.failures import failing_replica

    assert failing_replica(text, [f"{kind}:{number}" for number in range(3)]) == replica


def test_a_gpu_has_tensorflows_number_which_is_not_its_place_in_the_split() -> None:
    from gpubalance.engine.failures import failing_replica

    assert failing_replica(SHAPED.format("GPU:1"), ["GPU:2", "GPU:1"]) == 1


@pytest.mark.parametrize("settings", [SETTINGS, USERS], ids=["ours", "the user's"])
def test_a_possible_lack_of_memory_has_the_other_fault(settings: Settings) -> None:
    """What may be a lack of memory is one with the fault that it is else.

    As cuDNN, cuBLAS and NCCL say it, in errors of a graph.
    """
    errors = tf.errors
    for kind, text, code in (
        (errors.NotFoundError, "No algorithm worked!  Error messages:", "no-room"),
        (
            errors.InternalError,
            "Failed to create cuBLAS handle: failed to create cublas handle: the resource",
            "no-room",
        ),
        (
            errors.InternalError,
            "CUDNN failed to allocate the scratch space for the runner",
            "no-room",
        ),
        (
            errors.InternalError,
            "Failed to allocate 4.0MiB (4194304 bytes) from NCCL: unhandled",
            "nccl-memory",
        ),
        (
            errors.InternalError,
            "NCCL: unhandled cuda error (run with NCCL_DEBUG=INFO). Set NCCL_DEBUG=WARN",
            "nccl",
        ),
        (errors.InternalError, "Dst tensor is not initialized.", "no-room"),
        (
            errors.UnknownError,
            "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            "out-of-memory",
        ),
    ):
        graph = (
            f"Graph execution error:\n\nDetected at node replica_1/Conv2D\n{text}\n\t [[{{{{node "
            f"replica_1/Conv2D}}}}]]"
        )
        failure = explain(kind(None, None, graph), settings, ["GPU:0", "GPU:1"])
        assert isinstance(failure, OutOfMemory)
        assert failure.replica == 1
        fault = failure.fault
        assert fault is not None
        assert (
            fault.message == f"training {settings.model} failed on the device: {text}"
        )
        assert (fault.cause, fault.remedy) == (
            known_error(code).cause,
            known_error(code).remedy,
        )
    # What the user's own code says is no library's.
    own = explain(RuntimeError("Dst tensor is not initialized."), settings)
    assert not isinstance(own, OutOfMemory)
