"""`gpubalance --version`: the versions that a bug report needs. It never fails."""

from __future__ import annotations


def version_text() -> str:
    """One line for each program."""
    import platform

    from gpubalance._version import __version__
    from gpubalance.devices.gpus import Reading
    from gpubalance.devices.nvml import read
    from gpubalance.system.deadlines import within_or
    from gpubalance.system.versions import software

    found, driver = software(), within_or(Reading(problem="NVML does not answer"), lambda: read(gpus=False))
    built = f"built for CUDA {found.cuda}, cuDNN {found.cudnn or 'of unknown version'}"
    tensorflow = f"{found.tensorflow}, {built if found.cuda else 'built without CUDA'}"
    return "\n".join(
        [
            f"gpubalance {__version__}",
            f"Python {platform.python_version()}",
            f"TensorFlow {tensorflow if found.tensorflow else 'is not installed'}",
            f"Keras {found.keras or 'is not installed'}",
            f"driver {driver.driver_version}, up to CUDA {driver.cuda_driver_version or 'of unknown version'}"
            if driver.driver_version
            else f"no driver: {(driver.problem or 'it does not tell its version').removeprefix('no NVIDIA driver: ')}",
        ]
    )
