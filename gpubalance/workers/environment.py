"""The environment variables of a worker."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpubalance.settings.device import Device

# The user's values of these would make the run differ from what is recorded.
_CONTRADICT = ("NVIDIA_TF32_OVERRIDE", "TF_XLA_FLAGS", "PYTHONSAFEPATH", "TF_CONFIG")


def worker_environment(devices: Sequence[Device]) -> dict[str, str]:
    """The variables that TensorFlow and CUDA read when loaded, set so that the worker has only these devices."""
    gpus = [d.uuid for d in devices if not d.simulated]
    kept = {name: value for name, value in os.environ.items() if name not in _CONTRADICT}
    return {
        **kept,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus) if gpus else "-1",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_MIN_GPU_MULTIPROCESSOR_COUNT": "1",  # else TensorFlow leaves a small GPU out of a joint run
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "KERAS_BACKEND": "tensorflow",
        "PYTHONUNBUFFERED": "1",
    }
