"""Errors of the driver and of the GPUs themselves."""

from __future__ import annotations

from gpubalance.remedies.row import Known

ROWS = (
    Known(
        "no-driver",
        "libnvidia-ml.so.1 was not found",
        "the NVIDIA driver is not installed, or a container was started without it",
        "install the NVIDIA driver; in a container, start it with the GPUs (`docker run --gpus all`)",
        (r"NVML Shared Library Not Found", r"Could not find cuda drivers on your machine"),
    ),
    Known(
        "driver-not-loaded",
        "the NVIDIA driver is not loaded",
        "its kernel module was not built for this kernel, or Secure Boot blocks it",
        "reboot or reload the driver (`sudo modprobe nvidia`); `dmesg | grep -i nvidia` says why it does not load",
        (r"couldn't communicate with the NVIDIA driver", r"NVML: Driver Not Loaded"),
    ),
    Known(
        "driver-mismatch",
        "Driver/library version mismatch; kernel version … does not match DSO version …",
        "the driver was updated while the old one is still loaded, or a container brings another version's libraries",
        "reboot or reload the driver (`sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && "
        "sudo modprobe nvidia`)",
        (
            r"[Dd]river/library version mismatch",
            r"kernel version \S+ does not match DSO version",
            r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        ),
    ),
    Known(
        "driver-too-old",
        "CUDA driver version is insufficient for CUDA runtime version",
        "the driver is older than the CUDA that TensorFlow is built for",
        "install a newer driver (`sudo apt-get install nvidia-driver-550`, or from nvidia.com) and reboot",
        (
            r"CUDA driver version is insufficient for CUDA runtime version",
            r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            r"the provided PTX was compiled with an unsupported toolchain",
        ),
    ),
    Known(
        "no-permission",
        "no permission to use the NVIDIA driver",
        "you may not open the driver's device files",
        "ask for access to the files that `ls -l /dev/nvidia*` lists (often `sudo usermod -aG video,render $USER`)",
        (r"no permission to use the NVIDIA driver", r"NVML: Insufficient Permissions", r"CUDA_ERROR_NOT_PERMITTED"),
    ),
    Known(
        "nvml-broken",
        "NVML does not start",
        "the driver or its library is damaged",
        "see what `nvidia-smi` says, and reinstall the driver",
    ),
    Known(
        "nvml-hangs",
        "NVML does not answer",
        "the driver hangs, mostly after a GPU fell off the bus",
        "look at `sudo dmesg | grep -i xid`, then reboot",
    ),
    Known(
        "no-gpu-seen",
        "the NVIDIA driver is loaded, but sees no GPU",
        "the card is not on the bus, or not passed into this container or virtual machine",
        "look for the card with `lspci | grep -i nvidia`; in a container, pass it in (`docker run --gpus all`)",
        (r"CUDA_ERROR_NO_DEVICE", r"no CUDA-capable device is detected"),
    ),
    Known(
        "hidden",
        "hidden by CUDA_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES names other GPUs, or none",
        "`unset CUDA_VISIBLE_DEVICES`, or name it there by its UUID (`gpubalance devices` lists them)",
        (r"hidden by CUDA_VISIBLE_DEVICES", r"CUDA_VISIBLE_DEVICES=\S* means CUDA's order"),
    ),
    Known(
        "mig",
        "MIG mode is on",
        "only slices of the GPU can be used, and only one at a time: CUDA shows a process no more than one",
        "choose one slice (`gpubalance devices` lists them), or turn MIG off yourself (`sudo nvidia-smi -i N -mig 0`)",
        (r"MIG mode is on",),
    ),
    Known(
        "gpu-lost",
        "the GPU is lost",
        "it stopped answering or fell off the bus: heat, power supply, riser or slot",
        "reboot; `sudo dmesg | grep -i xid` shows what came before",
        (r"GPU is lost", r"GPU has fallen off the bus"),
        fatal=True,
    ),
    Known(
        "gpu-needs-reset",
        "the GPU must be reset",
        "an error left it in a state that only a reset clears",
        "reboot, or end the processes that use it and reset it yourself (`sudo nvidia-smi --gpu-reset -i N`)",
        (r"GPU requires reset", r"the GPU must be reset"),
    ),
    Known(
        "cuda-does-not-start",
        "failed call to cuInit: CUDA_ERROR_UNKNOWN",
        "CUDA's kernel module is not loaded, or broke during a suspend",
        "`sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm`, or reboot",
        (r"cuInit: .*CUDA_ERROR_UNKNOWN", r"CUDA_ERROR_NOT_INITIALIZED"),
    ),
    Known(
        "gpu-busy",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process has the GPU for itself (compute mode Exclusive or Prohibited)",
        "end that process, or allow several with `sudo nvidia-smi -i N -c DEFAULT`",
        (r"CUDA_ERROR_DEVICE_UNAVAILABLE", r"CUDA-capable device\(s\) is/are busy or unavailable"),
    ),
)
