"""`--version`: one line for each program that a report of a fault needs."""

from __future__ import annotations

import platform

from gpubalance._version import __version__
from gpubalance.devices.nvml import Reading, read
from gpubalance.system.deadlines import within_or
from gpubalance.system.versions import Software, software


def version_text() -> str:
    """The lines. It never fails."""
    driver = within_or(
        Reading(problem="NVML does not answer"), lambda: read(gpus=False)
    )
    installed = software()
    lines = [
        f"gpubalance {__version__}",
        f"Python {platform.python_version()}",
        _tensorflow_text(installed),
        f"Keras {installed.keras or 'is not installed'}",
        _driver_text(driver),
    ]
    return "\n".join(lines)


def _tensorflow_text(installed: Software) -> str:
    if not installed.tensorflow:
        return "TensorFlow is not installed"
    if not installed.cuda:
        return f"TensorFlow {installed.tensorflow}, built without CUDA"
    cudnn = installed.cudnn or "of unknown version"
    return f"TensorFlow {installed.tensorflow}, built for CUDA {installed.cuda}, cuDNN {cudnn}"


def _driver_text(driver: Reading) -> str:
    if driver.driver_version:
        cuda = driver.cuda_driver_version or "of unknown version"
        return f"driver {driver.driver_version}, up to CUDA {cuda}"
    problem = driver.problem or "its version is unknown"
    return f"no driver: {problem.removeprefix('no NVIDIA driver: ')}"
