"""Errors of memory and disk, on devices and on the host."""

from __future__ import annotations

from gpubalance.remedies.row import Known

ROWS = (
    Known(
        "out-of-memory",
        "OOM when allocating tensor with shape …",
        "the batch, with weights, gradients and workspace, needs more memory than the device has free",
        "take a smaller batch on that device; `gpubalance probe` finds the largest that fits",
        (
            r"OOM when allocating",
            r"OOM on replica \d",
            r"^(?:[CG]PU:\d+|the run|every split that was tried) ran out of memory",
            r"^out of memory: ",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"(?:^|\W)RESOURCE_EXHAUSTED: (?:Out of memory|.*ailed to allocate)",
            r"Out of memory while trying to allocate \d+ bytes",
        ),
        fatal=True,
    ),
    Known(
        "no-room",
        "Could not create cudnn handle; Blas GEMM launch failed; No algorithm worked!; Dst tensor is not initialized",
        "cuDNN, cuBLAS or a copy to the GPU found too little free memory there, mostly because another process holds "
        "it, or cuDNN does not match the driver",
        "free the GPU's memory (`gpubalance devices` shows who holds it), set memory growth, or take smaller batches",
        (
            r"Dst tensor is not initialized",
            r"[Cc]ould not create cudnn handle",
            r"Failed to get convolution algorithm\. This is probably because cuDNN failed to initialize",
            r"DNN library initialization failed",
            r"No algorithm worked!",
            r"CUDNN failed to allocate the scratch space",
            r"CU(?:DNN|BLAS)_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED|INTERNAL_ERROR)",
            r"failed to create cublas handle|cublas create failed",
            r"Blas [A-Za-z]+ launch failed",
            r"using StreamExecutor without BLAS support",
        ),
    ),
    Known(
        "host-memory",
        "the worker was ended by SIGKILL",
        "most likely the host ran out of memory, and the kernel killed the largest process",
        "close other programs or take smaller batches; `sudo dmesg | grep -i 'killed process'` shows it",
    ),
    Known(
        "memory-growth",
        "Memory growth cannot differ between GPU devices",
        "TensorFlow was configured twice, or after its first use",
        "set memory growth for all GPUs at the top of the script, or enter split.scope() first",
        (
            r"Memory growth cannot differ between GPU devices",
            r"Physical devices cannot be modified after being initialized",
            r"Virtual devices cannot be modified after being initialized",
        ),
    ),
    Known(
        "disk-full",
        "No space left on device",
        "the disk, or a container's shared memory, is full",
        "`df -h . /tmp /dev/shm` shows which; free some space there",
        (r"No space left on device", r"ENOSPC"),
    ),
)
