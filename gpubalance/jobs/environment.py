"""The software and machine behind a figure."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

from gpubalance._version import __version__
from gpubalance.results.common import Environment
from gpubalance.system.versions import software
from gpubalance.workers.messages import Ready


def environment(facts: Ready, driver: str | None) -> Environment:
    """The environment of a measurement, with the TensorFlow versions that its worker reported."""
    return _environment(facts.tensorflow, facts.keras, facts.cuda, facts.cudnn, driver)


def environment_here(driver: str | None) -> Environment | None:
    """The environment by installed packages, without a worker. None if TensorFlow's or Keras' version is unknown."""
    found = software()
    if found.tensorflow is None or found.keras is None:
        return None
    return _environment(found.tensorflow, found.keras, found.cuda, found.cudnn, driver)


def _environment(tensorflow: str, keras: str, cuda: str | None, cudnn: str | None, driver: str | None) -> Environment:
    """Records an allow-list of facts: no host name, user, paths or environment variables."""
    return Environment(
        gpubalance=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu_name(),
        cpu_count=psutil.cpu_count() or 1,
        tensorflow=tensorflow,
        keras=keras,
        cuda=cuda,
        cudnn=cudnn,
        driver=driver,
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
