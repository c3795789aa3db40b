"""The software and machine behind a figure."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

from gpubalance._version import __version__
from gpubalance.results.common import Environment
from gpubalance.system.versions import software


def environment(driver: str | None) -> Environment:
    """The environment of a measurement: its workers have the software that is beside this program.

    Records an allow-list of facts: no host name, user, paths or environment variables.
    """
    versions = software()
    return Environment(
        gpubalance=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu_name(),
        cpu_count=psutil.cpu_count() or 1,
        tensorflow=versions.tensorflow or "",
        keras=versions.keras or "",
        cuda=versions.cuda,
        cudnn=versions.cudnn,
        driver=driver,
    )


def environment_here(driver: str | None) -> Environment | None:
    """The same; None if TensorFlow's or Keras' version is unknown."""
    here = environment(driver)
    return here if here.tensorflow and here.keras else None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""
