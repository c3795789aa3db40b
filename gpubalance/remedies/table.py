"""The rows of the table of known errors. One whose texts a broader row matches too stands before that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A row. `message` is the text by its author, shortened to what identifies it.

    `signs` are regular expressions, any of which is enough; a row without any is found only by its code. `fatal` means
    that the error ends a process: only such rows are searched for in a dead worker's log, as logs hold many harmless
    complaints.
    """

    code: str
    message: str
    cause: str
    remedy: str
    signs: tuple[str, ...]
    fatal: bool


def row(code: str, message: str, cause: str, remedy: str, *signs: str, fatal: bool = False) -> Known:
    """The row of an error with these signs."""
    return Known(code, message, cause, remedy, signs, fatal)


ROWS = (
    # The driver, the GPUs themselves, and the installation: TensorFlow, CUDA's libraries, XLA's tools
    row(
        "no-driver",
        "libnvidia-ml.so.1 was not found",
        "the NVIDIA driver is not installed, or a container was started without it",
        "install the NVIDIA driver; in a container, start it with the GPUs (`docker run --gpus all`)",
        r"NVML Shared Library Not Found",
        r"Could not find cuda drivers on your machine",
    ),
    row(
        "driver-not-loaded",
        "the NVIDIA driver is not loaded",
        "its kernel module was not built for this kernel, or Secure Boot blocks it",
        "reboot or reload the driver (`sudo modprobe nvidia`); `dmesg | grep -i nvidia` says why it does not load",
        r"couldn't communicate with the NVIDIA driver|NVML: Driver Not Loaded",
    ),
    row(
        "driver-mismatch",
        "Driver/library version mismatch; kernel version … does not match DSO version …",
        "the driver was updated while the old one is still loaded, or a container brings another version's libraries",
        "reboot, or `sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia`",
        r"[Dd]river/library version mismatch",
        r"kernel version \S+ does not match DSO version",
        r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    ),
    row(
        "driver-too-old",
        "CUDA driver version is insufficient for CUDA runtime version",
        "the driver is older than the CUDA that TensorFlow is built for",
        "install a newer driver (`sudo apt-get install nvidia-driver-550`, or from nvidia.com) and reboot",
        r"CUDA driver version is insufficient",
        r"UNSUPPORTED_PTX_VERSION|PTX was compiled with an unsupported toolchain",
    ),
    row(
        "no-permission",
        "no permission to use the NVIDIA driver",
        "you may not open the driver's device files",
        "ask for access to the files that `ls -l /dev/nvidia*` lists (often `sudo usermod -aG video,render $USER`)",
        r"no permission to use the NVIDIA driver",
        r"NVML: Insufficient Permissions",
        r"CUDA_ERROR_NOT_PERMITTED",
    ),
    row(
        "nvml-broken",
        "NVML does not work",
        "the driver or its library is damaged",
        "see what `nvidia-smi` says, and reinstall the driver",
    ),
    row(
        "nvml-hangs",
        "NVML does not answer",
        "the driver hangs, mostly after a GPU fell off the bus",
        "look at `sudo dmesg | grep -i xid`, then reboot",
    ),
    row(
        "no-gpu-seen",
        "the NVIDIA driver is loaded, but sees no GPU",
        "the card is not on the bus, or not passed into this container or virtual machine",
        "look for the card with `lspci | grep -i nvidia`; in a container, pass it in (`docker run --gpus all`)",
        r"CUDA_ERROR_NO_DEVICE",
        r"no CUDA-capable device is detected",
    ),
    row(
        "hidden",
        "hidden by CUDA_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES names other GPUs, or none",
        "`unset CUDA_VISIBLE_DEVICES`, or name it there by its UUID (`gpubalance devices` lists them)",
        r"hidden by CUDA_VISIBLE_DEVICES",
        r"CUDA_VISIBLE_DEVICES=\S* means CUDA's order",
    ),
    row(
        "mig",
        "MIG mode is on",
        "only slices of the GPU can be used, and only one at a time: CUDA shows a process no more than one",
        "choose one slice (`gpubalance devices` lists them), or turn MIG off yourself (`sudo nvidia-smi -i N -mig 0`)",
        r"MIG mode is on",
    ),
    row(
        "gpu-lost",
        "the GPU is lost",
        "it stopped answering or fell off the bus: heat, power supply, riser or slot",
        "reboot; `sudo dmesg | grep -i xid` shows what came before",
        r"GPU (?:is lost|has fallen off the bus)",
        fatal=True,
    ),
    row(
        "gpu-needs-reset",
        "the GPU must be reset",
        "an error left it in a state that only a reset clears",
        "reboot, or end the processes that use it and reset it yourself (`sudo nvidia-smi --gpu-reset -i N`)",
        r"GPU requires reset|GPU must be reset",
    ),
    row(
        "cuda-does-not-start",
        "failed call to cuInit: CUDA_ERROR_UNKNOWN",
        "CUDA's kernel module is not loaded, or broke during a suspend",
        "`sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm`, or reboot",
        r"cuInit: .*CUDA_ERROR_UNKNOWN",
        r"CUDA_ERROR_NOT_INITIALIZED",
    ),
    row(
        "gpu-busy",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process has the GPU for itself (compute mode Exclusive or Prohibited)",
        "end that process, or allow several with `sudo nvidia-smi -i N -c DEFAULT`",
        r"CUDA_ERROR_DEVICE_UNAVAILABLE",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
    ),
    row(
        "tensorflow-broken",
        "TensorFlow can't be loaded",
        "its installation is incomplete, or another package in this environment does not fit it",
        "reinstall it: `pip install --force-reinstall '.[cuda]'` in gpubalance's checkout",
        r"Failed to load the native TensorFlow runtime",
        r"numpy\.core\.multiarray failed to import",
    ),
    row(
        "cpu-too-old",
        "compiled to use AVX instructions, but these aren't available on your machine",
        "this processor, or the virtual machine, lacks instructions that TensorFlow uses",
        "give the virtual machine its host's processor type, or install a TensorFlow built for this processor",
        r"library was compiled to use \w+ instructions, but these aren't available",
        fatal=True,
    ),
    row(
        "cuda-library-missing",
        "Cannot dlopen some GPU libraries; DNN library is not found; Loaded runtime CuDNN library: … but source …",
        "a CUDA library that TensorFlow needs is not installed, or another version of it is found first",
        "`pip install '.[cuda]'` in gpubalance's checkout, and `unset LD_LIBRARY_PATH` if it points to another CUDA",
        r"TensorFlow \S+ sees no GPU",
        r"Cannot dlopen some GPU libraries",
        r"Loaded runtime CuDNN library: .* but source was compiled with|CUDNN_STATUS_VERSION_MISMATCH",
        r"No DNN in stream executor|DNN library is not found",
        r"Could not load dynamic library 'lib(?:cu|nccl|nv)",
        r"lib(?:cudart|cublas(?:Lt)?|cufft|cusolver|cusparse|cudnn|nccl)\.so[.\d]*: cannot open shared object",
    ),
    row(
        "cudnn-without-this-gpu",
        "CUDNN_STATUS_ARCH_MISMATCH; no kernel image is available",
        "the library has no code for a GPU this old: cuDNN 9.11 and later have none below compute capability 7.5",
        "`pip install nvidia-cudnn-cu12==9.10.2.21`, the last for GTX 10xx, Titan X and Xp, P100 and V100",
        r"CUDNN_STATUS_(?:NOT_SUPPORTED_)?ARCH_MISMATCH",
        r"no kernel image is available for execution on the device",
        r"CUDA_ERROR_NO_BINARY_FOR_GPU",
    ),
    row(
        "capability-too-old",
        "The minimum required Cuda capability is …",
        "the GPU is older than any this TensorFlow is built for",
        "leave it out with --gpus, or install an older TensorFlow",
        r"The minimum required Cuda capability is",
    ),
    row(
        "left-out",
        "TensorFlow leaves out GPU:…",
        "TensorFlow can't open the GPU: too old for this build, or its memory is full",
        "`gpubalance doctor` says which; leave it out with --gpus",
        r"TensorFlow \S+ leaves (?:it )?out",
    ),
    row(
        "xla-tools",
        "libdevice not found at ./libdevice.10.bc; No PTX compilation provider is available",
        "XLA cannot find CUDA's compiler files or its assembler ptxas, or finds one that is too old",
        "`pip install nvidia-cuda-nvcc-cu12`, `export XLA_FLAGS=--xla_gpu_cuda_data_dir=/usr/local/cuda`, or --no-xla",
        r"libdevice not found at|Can't find libdevice directory",
        r"No PTX compilation provider is available|ptxas not found|Couldn't (?:get|invoke) ptxas",
    ),
    # Memory and disk, and a step or building a model: cuDNN, cuBLAS, NCCL, shapes
    row(
        "no-room",
        "Could not create cudnn handle; Blas GEMM launch failed; No algorithm worked!; Dst tensor is not initialized",
        "the GPU has too little free memory, mostly as another process holds it, or cuDNN does not match the driver",
        "free the GPU's memory (`gpubalance devices` shows who holds it), set memory growth, or take smaller batches",
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
    row(
        "out-of-memory",
        "OOM when allocating tensor with shape …",
        "the batch, with weights, gradients and workspace, needs more memory than the device has free",
        "take a smaller batch on that device; `gpubalance probe` finds the largest that fits",
        r"OOM (?:when allocating|on replica \d)",
        r"^(?:[CG]PU:\d+|the run|every split that was tried) ran out of memory",
        r"^out of memory: ",
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"(?:^|\W)RESOURCE_EXHAUSTED: (?:Out of memory|.*ailed to allocate)",
        r"Out of memory while trying to allocate \d+ bytes",
        fatal=True,
    ),
    row(
        "host-memory",
        "the worker was ended by SIGKILL",
        "most likely the host ran out of memory, and the kernel killed the largest process",
        "close other programs or take smaller batches; `sudo dmesg | grep -i 'killed process'` shows it",
    ),
    row(
        "memory-growth",
        "Memory growth cannot differ between GPU devices",
        "TensorFlow was configured twice, or after its first use",
        "set memory growth for all GPUs at the top of the script, or enter split.scope() first",
        r"Memory growth cannot differ between GPU devices",
        r"(?:Physical|Virtual) devices cannot be modified after",
    ),
    row(
        "disk-full",
        "No space left on device",
        "the disk, or a container's shared memory, is full",
        "`df -h . /tmp /dev/shm` shows which; free some space there",
        r"No space left on device|ENOSPC",
    ),
    row(
        "cannot-assign-device",
        "Cannot assign a device for operation …",
        "the script names a device that TensorFlow does not have, or an operation without a GPU kernel",
        "`gpubalance doctor` shows which GPUs TensorFlow has; leave device names to split.scope()",
        r"Cannot assign a device for operation",
        r"Could not satisfy (?:explicit )?device specification",
    ),
    row(
        "outside-scope",
        "Variable … was not created in the distribution strategy scope",
        "the model, its optimizer or a metric was created outside the strategy's scope, on one device only",
        "build and compile the model inside `with split.scope():`",
        r"was not created in the distribution strategy scope",
        r"Trying to access resource .*located in device",
        r"must be created (?:in|under) the same strategy scope",
    ),
    row(
        "incompatible-shapes",
        "Incompatible shapes: [32,10] vs. [16,10]",
        "two batches of different size met: the model or its loss has a fixed batch size, but each device has its own",
        "take the batch from the tensor (`tf.shape(x)[0]`), and give an Input no batch_size",
        # Only if the first sizes differ and all others agree: any other pair is a plain mistake in a model.
        r"Incompatible shapes: \[(?P<one>\d+)\] vs\. \[(?!(?P=one)\])\d+\]",
        r"Incompatible shapes: \[(?P<first>\d+)(?P<others>,[\d,]+)\] vs\. \[(?!(?P=first),)\d+(?P=others)\]",
    ),
    row(
        "nccl-system",
        "NCCL: unhandled system error",
        "NCCL got no shared memory, or no network interface that it may use",
        "in a container, `docker run --shm-size=8g --ulimit memlock=-1`, otherwise --all-reduce hierarchical",
        r"NCCL.{0,120}?unhandled system error|ncclSystemError",
        fatal=True,
    ),
    row(
        "nccl",
        "Error invoking NCCL: unhandled cuda error",
        "NCCL could not start, or its copy between two GPUs failed",
        "`export NCCL_P2P_DISABLE=1` avoids direct copies, --all-reduce hierarchical avoids NCCL",
        r"Error invoking NCCL",
        r"NCCL.{0,120}?(?:unhandled cuda|internal) error",
        r"NCCL: (?:invalid|remote|unhandled)",
        r"nccl(?:UnhandledCudaError|InternalError|InvalidUsage|RemoteError)",
        fatal=True,
    ),
    row(
        "copy-differs",
        "a copy between two GPUs is not what was sent",
        "the driver offers direct copies that do not work: an IOMMU translates them, or the card cannot do them",
        "boot with `iommu=pt` or without an IOMMU, update the driver, and until then `export NCCL_P2P_DISABLE=1`",
    ),
    row(
        "silent",
        "the worker said nothing for … s",
        "a step or a collective hangs: a GPU stopped, or one device never joins an all-reduce",
        "`sudo dmesg | grep -i xid` shows a GPU that stopped; `gpubalance doctor` tries each part",
    ),
    row(
        "peer-lost",
        "Collective ops is aborted by: … heartbeat timeout",
        "a process of a run over several hosts stopped, or its network did",
        "see whether its host is up, and whether the others reach it",
    ),
    row(
        "watchdog",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "the GPU drives a display, and its watchdog ended a kernel that took seconds",
        "connect the display elsewhere, or `sudo systemctl isolate multi-user.target`",
        r"CUDA_ERROR_LAUNCH_TIMEOUT",
        fatal=True,
    ),
    row(
        "ecc-error",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "the GPU's memory returned other bits than were written: do not trust the results",
        "reboot; if `nvidia-smi -q -d ECC,ROW_REMAPPER` shows more errors, replace the card",
        r"CUDA_ERROR_ECC_UNCORRECTABLE",
        r"uncorrectable ECC error|ECC did not correct",
        fatal=True,
    ),
    row(
        "illegal-address",
        "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
        "a kernel accessed memory it may not: a bug in an operation, an unstable overclock, or a failing card",
        "reset clocks to their defaults, run `gpubalance doctor`, and try without --xla",
        r"CUDA_ERROR_ILLEGAL_ADDRESS",
        r"an illegal memory access was encountered",
        r"CUDA_ERROR_LAUNCH_FAILED",
        fatal=True,
    ),
)
