"""The table of known errors: found by the real texts, and by nothing that only looks like one."""

from __future__ import annotations

import pytest

from gpubalance.cli.failures import ours, show_error
from gpubalance.errors import BadInput, EnvironmentFault, NothingFits
from gpubalance.remedies import known, known_errors, match, match_log

# Whole or as excerpts, as TensorFlow, CUDA, NVML and the kernel's module wrote them in people's reports.
REAL = [
    (
        "cannot-assign-device",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Cannot assign a device for operation "
        "HICO_0/MatMul: {{node HICO_0/MatMul}}was explicitly assigned to /device:GPU:0 but available devices are "
        "[ /job:localhost/replica:0/task:0/device:CPU:0 ]. Make sure the device specification refers to a valid "
        "device.",
    ),
    ("memory-growth", "ValueError: Memory growth cannot differ between GPU devices"),
    ("memory-growth", "RuntimeError: Physical devices cannot be modified after being initialized"),
    (
        "outside-scope",
        "ValueError: Variable (<tf.Variable 'dense/kernel:0' shape=(4, 2) dtype=float32>) was not created in the "
        "distribution strategy scope of (<tensorflow.python.distribute.mirrored_strategy.MirroredStrategy object>).",
    ),
    ("no-room", "(0) Internal: Dst tensor is not initialized.\n\t [[{{node _arg_input/x-input_0_1}}]]"),
    (
        "no-room",
        "failed to allocate 105.12M (110231552 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
        "InternalError: Dst tensor is not initialized.",
    ),
    (
        "out-of-memory",
        "OOM when allocating tensor with shape[1024,512,14,14] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]",
    ),
    ("out-of-memory", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes."),
    (
        "out-of-memory",
        "failed to allocate 7.92G (8507621376 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    ),
    (
        "nccl-system",
        "(0) Internal:  NCCL: unhandled system error. Set NCCL_DEBUG=WARN for detail.\n\t [[node NcclAllReduce "
        "(defined at <ipython-input-17-7105c4ec4d5e>:2) ]]",
    ),
    ("nccl", "UNKNOWN: Error invoking NCCL: unhandled cuda error\n\t [[{{node NcclAllReduce_1}}]]"),
    (
        "no-room",
        "2019-12-24 10:32:35.591353: E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: "
        "CUDNN_STATUS_INTERNAL_ERROR",
    ),
    (
        "no-room",
        "Unknown: Failed to get convolution algorithm. This is probably because cuDNN failed to initialize, so try "
        "looking to see if a warning log message was printed above.\n\t [[{{node MobilenetV2/Conv/Conv2D}}]]",
    ),
    (
        "no-room",
        "FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for more details.",
    ),
    (
        "cuda-library-missing",
        "(0) UNIMPLEMENTED:  DNN library is not found.\n\t [[{{node seg_managed/resnet50/conv1_1_conv/Conv2D}}]]",
    ),
    ("cuda-library-missing", "INTERNAL: No DNN in stream executor. [Op:Conv2D]"),
    (
        "cuda-library-missing",
        "cuda_dnn.cc:417] Loaded runtime CuDNN library: 8.4.0 but source was compiled with: 8.6.0.  CuDNN library "
        "needs to have matching major version and equal or higher minor version.\n"
        "UNIMPLEMENTED: DNN library is not found.",
    ),
    ("xla-tools", "INTERNAL: libdevice not found at ./libdevice.10.bc\n\t [[{{node StatefulPartitionedCall_16}}]]"),
    (
        "xla-tools",
        "gpu_backend_lib.cc:579] Can't find libdevice directory ${CUDA_DIR}/nvvm/libdevice. This may result in "
        "compilation or runtime failures, if the program we try to run uses routines from libdevice.",
    ),
    ("xla-tools", "No PTX compilation provider is available. Neither ptxas/nvlink nor nvjtlink is available."),
    (
        "no-gpu-seen",
        "cuda_diagnostics.cc] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    ),
    ("cuda-does-not-start", "failed call to cuInit: UNKNOWN ERROR (303); cuInit: CUDA_ERROR_UNKNOWN: unknown error"),
    ("driver-mismatch", "Failed to initialize NVML: Driver/library version mismatch"),
    (
        "driver-mismatch",
        "kernel version 470.57.2 does not match DSO version 525.60.13 -- cannot find working devices in this "
        "configuration",
    ),
    ("driver-too-old", "CUDA driver version is insufficient for CUDA runtime version"),
    ("cudnn-without-this-gpu", "INTERNAL: no kernel image is available for execution on the device"),
    (
        "capability-too-old",
        "Ignoring visible gpu device (device: 0, name: GeForce GTX 765M, pci bus id: 0000:01:00.0, compute capability: "
        "3.0) with Cuda compute capability 3.0. The minimum required Cuda capability is 6.0.",
    ),
    (
        "cuda-library-missing",
        "W gpu_device.cc] Cannot dlopen some GPU libraries. Please make sure the missing libraries mentioned above are "
        "installed properly if you would like to use GPU.",
    ),
    ("cuda-library-missing", "libcudnn.so.9: cannot open shared object file: No such file or directory"),
    ("no-room", "NOT_FOUND: No algorithm worked!  Error messages:"),
    ("no-room", "E cuda_blas.cc:226] failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED"),
    ("no-room", "InternalError: Blas GEMM launch failed : a.shape=(100, 784), b.shape=(784, 10), m=100"),
    ("incompatible-shapes", "Incompatible shapes: [32,10] vs. [16,10]\n\t [[{{node gradient_tape/sub}}]]"),
    ("illegal-address", "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"),
    ("ecc-error", "could not synchronize on CUDA context: CUDA_ERROR_ECC_UNCORRECROWS: uncorrectable ECC error"),
    ("watchdog", "CUDA_ERROR_LAUNCH_TIMEOUT: the launch timed out and was terminated"),
    ("gpu-busy", "CUDA_ERROR_DEVICE_UNAVAILABLE: CUDA-capable device(s) is/are busy or unavailable"),
    ("gpu-lost", "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system"),
    (
        "cpu-too-old",
        "F cpu_feature_guard.cc:37] The TensorFlow library was compiled to use AVX instructions, but these aren't "
        "available on your machine.",
    ),
    (
        "tensorflow-broken",
        "ImportError: Traceback (most recent call last):\n\nFailed to load the native TensorFlow runtime.",
    ),
    ("disk-full", "OSError: [Errno 28] No space left on device"),
]
# What people's own models and scripts raise, and what TensorFlow writes when nothing is wrong.
NOT_KNOWN = [
    "ValueError: Shapes (32, 10) and (16, 10) are incompatible",
    "Incompatible shapes: [32,10] vs. [32,11]",
    "Incompatible shapes: [32,7,7,64] vs. [16,5,5,64]",
    "Incompatible shapes: [3,10] vs. [30]",
    "Dimensions must be equal, but are 10 and 11 for '{{node add}} = AddV2[T=DT_FLOAT]'",
    "Matrix size-incompatible: In[0]: [32,784], In[1]: [100,10]",
    "KeyError: 'device'",
    "ValueError: no memory of this sample in my dataset",
    "RuntimeError: my allocator failed",
    "I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized to use available CPU "
    "instructions in performance-critical operations.",
    "I external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:454] Loaded cuDNN version 90300",
    "Created device /job:localhost/replica:0/task:0/device:GPU:0 with 9652 MB memory:  -> device: 0, name: NVIDIA "
    "GeForce GTX 1080 Ti, pci bus id: 0000:01:00.0, compute capability: 6.1",
]


@pytest.mark.parametrize(("code", "text"), REAL, ids=[f"{code}-{i}" for i, (code, _) in enumerate(REAL)])
def test_a_real_text_finds_its_row(code: str, text: str) -> None:
    row = match(text)
    assert row is not None
    assert row.code == code


@pytest.mark.parametrize("text", NOT_KNOWN, ids=lambda text: text[:40])
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert match(text) is None


def test_each_row_is_whole_and_is_found_by_a_real_text() -> None:
    for row in known_errors().values():
        assert row.message
        assert row.cause
        assert row.remedy
    tried = {code for code, _ in REAL}
    raised_here = {"no-driver", "driver-not-loaded", "no-permission", "hidden", "mig", "gpu-needs-reset", "left-out"}
    assert {row.code for row in known_errors().values() if row.signs} <= tried | raised_here


def test_a_log_full_of_complaints_that_end_nothing_is_no_cause_of_death() -> None:
    complaint = "E cuda] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
    assert match(complaint) is not None
    assert match_log(f"{complaint}\nloading\n") is None
    row = match_log(f"{complaint}\nF] CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered\nAborted\n")
    assert row is known("illegal-address")


def test_an_error_is_shown_with_cause_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_error(EnvironmentFault("it failed", cause="of that", remedy="do this"), verbose=False) == 3
    assert capsys.readouterr().err == "error: it failed\n  cause: of that\n  → do this\n"
    # One that says nothing of either takes them from the table; what the user wrote is never looked up.
    show_error(EnvironmentFault("INTERNAL: Dst tensor is not initialized."), verbose=False)
    assert known("no-room").remedy in capsys.readouterr().err
    # A cause that the message tells already is not told twice.
    told = EnvironmentFault(f"Dst tensor is not initialized: {known('no-room').cause}", remedy="do this")
    show_error(told, verbose=False)
    assert "cause:" not in capsys.readouterr().err
    show_error(NothingFits("out of memory: GPU:1 at batch 8", remedy="--batches 4"), verbose=False)
    assert f"cause: {known('out-of-memory').cause}\n  → --batches 4\n" in capsys.readouterr().err
    show_error(BadInput("my model says: Dst tensor is not initialized."), verbose=False)
    assert "→" not in capsys.readouterr().err


def test_an_error_that_nobody_foresaw_is_no_bug_of_ours_where_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    for error, code, says in (
        (OSError(28, "No space left on device"), 3, known("disk-full").remedy),
        (RuntimeError("of ours"), 1, "a bug in gpubalance: RuntimeError: of ours"),
    ):
        found = ours(error, [])
        assert found is not None
        assert show_error(found, verbose=False) == code
        assert says in capsys.readouterr().err
