"""Errors of a step or of building a model: cuDNN, cuBLAS, NCCL, placement, shapes."""

from __future__ import annotations

from gpubalance.remedies.row import Known

ROWS = (
    Known(
        "cannot-assign-device",
        "Cannot assign a device for operation …",
        "the script names a device that TensorFlow does not have, or an operation without a GPU kernel",
        "`gpubalance doctor` shows which GPUs TensorFlow has; leave device names to split.scope()",
        (r"Cannot assign a device for operation", r"Could not satisfy (?:explicit )?device specification"),
    ),
    Known(
        "outside-scope",
        "Variable … was not created in the distribution strategy scope",
        "the model, its optimizer or a metric was created outside the strategy's scope, on one device only",
        "build and compile the model inside `with split.scope():`",
        (
            r"was not created in the distribution strategy scope",
            r"Trying to access resource .*located in device",
            r"must be created (?:in|under) the same strategy scope",
        ),
    ),
    Known(
        "incompatible-shapes",
        "Incompatible shapes: [32,10] vs. [16,10]",
        "two batches of different size met: the model or its loss has a fixed batch size, but each device has its own",
        "take the batch from the tensor (`tf.shape(x)[0]`), and give an Input no batch_size",
        # Only if the first sizes differ and all others agree: any other pair is a plain mistake in a model.
        (
            r"Incompatible shapes: \[(?P<one>\d+)\] vs\. \[(?!(?P=one)\])\d+\]",
            r"Incompatible shapes: \[(?P<first>\d+)(?P<others>,[\d,]+)\] vs\. \[(?!(?P=first),)\d+(?P=others)\]",
        ),
    ),
    Known(
        "nccl-system",
        "NCCL: unhandled system error",
        "NCCL got no shared memory, or no network interface that it may use",
        "in a container, `docker run --shm-size=8g --ulimit memlock=-1`; `NCCL_DEBUG=INFO` says more; otherwise "
        "--all-reduce hierarchical",
        (r"NCCL.{0,120}?unhandled system error", r"ncclSystemError"),
        fatal=True,
    ),
    Known(
        "nccl",
        "Error invoking NCCL: unhandled cuda error",
        "NCCL could not start, or its copy between two GPUs failed",
        "`export NCCL_P2P_DISABLE=1` avoids direct copies, --all-reduce hierarchical avoids NCCL",
        (
            r"Error invoking NCCL",
            r"NCCL.{0,120}?unhandled cuda error",
            r"NCCL.{0,120}?internal error",
            r"NCCL: (?:invalid|remote|unhandled)",
            r"nccl(?:UnhandledCudaError|InternalError|InvalidUsage|RemoteError)",
        ),
        fatal=True,
    ),
    Known(
        "copy-differs",
        "a copy between two GPUs is not what was sent",
        "the driver offers direct copies (peer-to-peer) that do not work: an IOMMU translates them, or the card cannot "
        "do them",
        "turn the IOMMU off or set it to pass-through (kernel parameter `iommu=pt`), update the driver, and until then "
        "`export NCCL_P2P_DISABLE=1`",
    ),
    Known(
        "silent",
        "the worker said nothing for … s",
        "a step or a collective hangs: a GPU stopped, or one device never joins an all-reduce",
        "`sudo dmesg | grep -i xid` shows a GPU that stopped; `gpubalance doctor` tries each part",
    ),
    Known(
        "peer-lost",
        "Collective ops is aborted by: … heartbeat timeout",
        "a process of a run over several hosts stopped, or its network did",
        "see whether its host is up, and whether the others reach it",
    ),
    Known(
        "watchdog",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "the GPU drives a display, and its watchdog ended a kernel that took seconds",
        "connect the display elsewhere, or `sudo systemctl isolate multi-user.target`",
        (r"CUDA_ERROR_LAUNCH_TIMEOUT",),
        fatal=True,
    ),
    Known(
        "ecc-error",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "the GPU's memory returned other bits than were written: do not trust the results",
        "reboot; if `nvidia-smi -q -d ECC,ROW_REMAPPER` shows more errors, replace the card",
        (
            r"CUDA_ERROR_ECC_UNCORRECTABLE",
            r"uncorrectable ECC error",
            r"memory errors that ECC did not correct",
        ),
        fatal=True,
    ),
    Known(
        "illegal-address",
        "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
        "a kernel accessed memory it may not: a bug in an operation, an unstable overclock, or a failing card",
        "reset clocks to their defaults, run `gpubalance doctor`, and try without --xla",
        (r"CUDA_ERROR_ILLEGAL_ADDRESS", r"an illegal memory access was encountered", r"CUDA_ERROR_LAUNCH_FAILED"),
        fatal=True,
    ),
)
