"""What TensorFlow and CUDA read from the environment, alike wherever a step is run."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.settings.device import Device

# With one of these a step would not be what the recorded settings say. A worker has none of them.
OVERRULING = ("NVIDIA_TF32_OVERRIDE", "TF_XLA_FLAGS")


def gpu_environment(devices: Sequence[Device]) -> dict[str, str]:
    """The variables by which a process has exactly the GPUs among these devices, in this order."""
    gpus = [device.uuid for device in devices if not device.simulated]
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus) or "-1",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        # Else TensorFlow leaves a small GPU out of a joint run
        "TF_MIN_GPU_MULTIPROCESSOR_COUNT": "1",
    }


def worker_environment(devices: Sequence[Device]) -> dict[str, str | None]:
    """The variables of a worker that has only these devices; those that are None are taken away."""
    return {
        **dict.fromkeys(OVERRULING),
        **gpu_environment(devices),
        "PYTHONSAFEPATH": None,
        "TF_CONFIG": None,
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "KERAS_BACKEND": "tensorflow",
        "PYTHONUNBUFFERED": "1",
    }
