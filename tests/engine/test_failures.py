"""What the worker tells its parent of an exception.

It tells cause and remedy where the text is known, and only there.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from functools import partial
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
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import DeviceProfile
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Failed
from tests.jobs.probes import devices_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known
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
    incompatible = "Incompatible shapes: [32,10] vs. [16,10]"
    cancelled = "RESOURCE_EXHAUSTED: a step was cancelled"
    for kind, text, code in (
        ("InvalidArgumentError", incompatible, "incompatible-shapes"),
        ("CancelledError", cancelled, "out-of-memory"),
    ):
        failure = explain(getattr(tf.errors, kind)(None, None, text), SETTINGS)
        row = known_error(code)
        assert (failure.cause, failure.remedy) == (row.cause, row.remedy)


@cases("settings", SETTINGS, USERS, ids=["ours", "the user's"])
def test_a_mistake_in_a_model_is_called_nothing_else(settings: Settings) -> None:
    kind = BadInput if settings is USERS else EnvironmentFault
    of_keras = "Shapes (32, 10) and (16, 10) are incompatible"
    invalid = partial(tf.errors.InvalidArgumentError, None, None)
    for text in (of_keras, "Incompatible shapes: [32,10] vs. [32,11]"):
        for error in (ValueError(text), invalid(text)):
            failure = explain(error, settings)
            assert (failure.cause, failure.remedy) == ("", "")
            assert text in failure.message
            assert isinstance(failure, kind)


def test_a_bug_is_never_the_environments_whatever_it_quotes() -> None:
    from gpubalance.workers.failures import error_of, failed_reply

    for settings in (SETTINGS, None):
        with pytest.raises(KeyError) as caught:
            known_error("No space left on device")  # raised in gpubalance's own code
        bug = explain(caught.value, settings)
        assert (type(bug), bug.exit_code, bug.cause) == (Bug, 1, "")
        assert bug.message == "a bug in gpubalance: KeyError: 'No space left on device'"
    told = error_of(failed_reply(caught.value, None, tuple), [], None, Path("its.log"))
    assert (told.message, told.cause) == (bug.message, "")
    assert told.remedy == "report the worker's whole log, its.log"
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
    tools = known_error("xla-tools").remedy
    missing = "libdevice not found at ./libdevice.10.bc [xla]"
    for text, remedy in ((missing, tools), ("no XLA", "use --no-xla")):
        error = tf.errors.InvalidArgumentError(None, None, text)
        assert explain(error, settings).remedy == remedy


OF_A_FUNCTION = "{{function_node __inference_one_step_on_device_71}} "


@cases("before", "", "(1) INTERNAL:  ", OF_A_FUNCTION, f"(0) ABORTED: {OF_A_FUNCTION}")
def test_a_reason_is_said_without_what_tensorflow_puts_before_it(before: str) -> None:
    error = tf.errors.InternalError(None, None, f"{before}no such kernel")
    told = "training small failed on the device: no such kernel"
    assert explain(error, SETTINGS).message == told


@cases("number", errno.ENOSPC, errno.EMFILE)
def test_a_full_disk_is_no_lack_of_memory(number: int) -> None:
    """TensorFlow raises the same for both: a batch limit was told where a disk was full."""
    exhausted = partial(tf.errors.ResourceExhaustedError, None, None)
    full = exhausted(f"/data/cache.data-00000-of-00001; {os.strerror(number)}")
    found = explain(full, SETTINGS)
    assert isinstance(found, EnvironmentFault)
    if number == errno.ENOSPC:
        assert found.remedy == known_error("disk-full").remedy
    full_memory = exhausted(SHAPED.format("GPU:0"))
    assert isinstance(explain(full_memory, SETTINGS), OutOfMemory)


def test_a_log_on_a_full_disk_leaves_an_error_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Out of memory told nothing there: the worker died of its traceback."""
    full = os.open("/dev/full", os.O_WRONLY)
    raw = io.FileIO(full, "w")  # whose end flushes nothing
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(raw, write_through=True))
    exhausted = tf.errors.ResourceExhaustedError(None, None, SHAPED.format("GPU:0"))
    assert isinstance(explain(exhausted, SETTINGS), OutOfMemory)


def test_a_check_tells_its_error_too() -> None:
    error = tf.errors.InternalError(None, None, "NCCL: unhandled system error.")
    failure = explain(error)
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
COPIED = (
    "Failed copying input tensor from /job:localhost/replica:0/task:0/device:{} to "
    "/job:localhost/replica:0/task:0/device:{} in order to run Identity: Dst tensor is not "
    "initialized. [Op:Identity] name: "
)
SHAPED = "OOM when allocating tensor with shape[820,64] on /job:localhost/replica:0/task:0/device:{} by"


@cases(
    "text, kind, replica",
    ("MemoryError: OOM on replica 1: batch 710 needs 9 bytes of 8", "CPU", 1),
    (COPIED.format("GPU:0", "GPU:1"), "GPU", 1),
    (COPIED.format("CPU:0", "GPU:2"), "GPU", 2),
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
)
def test_whose_an_out_of_memory_is(text: str, kind: str, replica: int | None) -> None:
    """A GPU has TensorFlow's number, which is not its place in the split."""
    from gpubalance.engine.failures import failing_replica

    assert failing_replica(text, [f"{kind}:{number}" for number in range(3)]) == replica
    assert failing_replica(SHAPED.format("GPU:1"), ["GPU:1", "GPU:2"]) == 0


OF_CUBLAS = "Failed to create cuBLAS handle: failed to create cublas handle: the"
OF_CUDNN = "CUDNN failed to allocate the scratch space for the runner"
OF_NCCL_S_MEMORY = "Failed to allocate 4.0MiB (4194304 bytes) from NCCL: unhandled"
OF_NCCL = "NCCL: unhandled cuda error (run with NCCL_DEBUG=INFO). Set NCCL_DEBUG=WARN"
LACKS = [
    ("NotFoundError", "No algorithm worked!  Error messages:", "no-room"),
    ("InternalError", OF_CUBLAS, "no-room"),
    ("InternalError", OF_CUDNN, "no-room"),
    ("InternalError", OF_NCCL_S_MEMORY, "nccl-memory"),
    ("InternalError", OF_NCCL, "nccl"),
    ("InternalError", "Dst tensor is not initialized.", "no-room"),
    ("UnknownError", "CUDA_ERROR_OUT_OF_MEMORY: out of memory", "out-of-memory"),
]


@cases("settings", SETTINGS, USERS, ids=["ours", "the user's"])
def test_a_possible_lack_of_memory_has_the_other_fault(settings: Settings) -> None:
    """What may be a lack of memory is one with the fault that it is else.

    As cuDNN, cuBLAS and NCCL say it, in errors of a graph.
    """
    for kind, text, code in LACKS:
        node = f"Detected at node replica_1/Conv2D\n{text}\n\t [[{{{{node replica_1/Conv2D}}}}]]"
        of_graph = f"Graph execution error:\n\n{node}"
        error = getattr(tf.errors, kind)(None, None, of_graph)
        failure = explain(error, settings, ["GPU:0", "GPU:1"])
        assert isinstance(failure, OutOfMemory)
        assert failure.replica == 1
        fault, row = known(failure.fault), known_error(code)
        told = f"training {settings.model} failed on the device: {text}"
        assert fault.message == told
        assert (fault.cause, fault.remedy) == (row.cause, row.remedy)
    # What the user's own code says is no library's.
    own = explain(RuntimeError("Dst tensor is not initialized."), settings)
    assert not isinstance(own, OutOfMemory)


def test_as_a_model_is_built_what_may_lack_memory_is_the_other_fault() -> None:
    """There no smaller batch can tell which of them it is."""
    from gpubalance.workers.failures import error_of

    failed = Failed(fault="memory", message=OF_CUDNN, remedy="free it", disguised=True)
    devices = devices_of(DeviceProfile(name="card", alpha_s=0.1, beta_s=0.001))
    log = Path("its.log")
    built = error_of(failed, devices, None, log)
    assert (type(built), built.message) == (EnvironmentFault, OF_CUDNN)
    assert built.remedy == "free it"
    trained = error_of(failed, devices, BatchSplit((8,)), log)
    plain = error_of(altered(failed, disguised=False), devices, None, log)
    assert (type(trained), type(plain)) == (OutOfMemory, OutOfMemory)
