"""The driver against the CUDA that TensorFlow is built for."""

from __future__ import annotations

import re

# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes: the oldest Linux driver for each major version
OLDEST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def too_old(driver: str | None, serves: str | None, built_for: str | None) -> str | None:
    """Why a driver that serves CUDA up to `serves` can't run a TensorFlow that is built for another; None where it can.

    A driver serves every CUDA of its own major version (minor-version compatibility), and older ones. None, too, where
    either version is not known.
    """
    major, needed = _major(serves), _major(built_for)
    if major is None or needed is None or major >= needed:
        return None
    oldest = OLDEST_DRIVER.get(needed)
    needs = f", which needs driver {oldest} or newer" if oldest else ""
    return (
        f"driver {driver or 'of unknown version'} serves CUDA up to {serves}, TensorFlow is built for CUDA {built_for}"
        f"{needs}"
    )


def _major(version: str | None) -> int | None:
    match = re.match(r"\d+", version or "")
    return int(match[0]) if match else None
