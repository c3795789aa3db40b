"""The driver against the CUDA that TensorFlow is built for."""

from __future__ import annotations

from gpubalance.system.versions import numbers

# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes: the oldest Linux driver for each major version
_OLDEST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def too_old(driver: str | None, serves: str | None, built_for: str | None) -> str | None:
    """Why a driver that serves CUDA up to `serves` can't run a TensorFlow that is built for a newer one, or None.

    A driver serves every CUDA of its own major version (minor-version compatibility), and older ones. An unknown
    version passes.
    """
    serves_numbers, needed = numbers(serves), numbers(built_for)
    if not serves_numbers or not needed or serves_numbers[0] >= needed[0]:
        return None
    oldest = _OLDEST_DRIVER.get(needed[0])
    needs = f", which needs driver {oldest} or newer" if oldest else ""
    return (
        f"driver {driver or 'of unknown version'} serves CUDA up to {serves}, TensorFlow is built for CUDA {built_for}"
        f"{needs}"
    )
