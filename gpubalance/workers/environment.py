"""The environment variables of a worker."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.settings.device import Device


def worker_environment(devices: Sequence[Device]) -> dict[str, str | None]:
    """The variables that TensorFlow and CUDA read when loaded, set so that the worker has only these devices.

    Those of the user's that are None would make the run differ from what is recorded.
    """
    gpus = [d.uuid for d in devices if not d.simulated]
    return {
        "NVIDIA_TF32_OVERRIDE": None,
        "TF_XLA_FLAGS": None,
        "PYTHONSAFEPATH": None,
        "TF_CONFIG": None,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus) if gpus else "-1",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_MIN_GPU_MULTIPROCESSOR_COUNT": "1",  # else TensorFlow leaves a small GPU out of a joint run
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "KERAS_BACKEND": "tensorflow",
        "PYTHONUNBUFFERED": "1",
    }
