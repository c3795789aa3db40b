"""`--version`: what a report of a fault needs, at once and from any machine."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gpubalance as package
from gpubalance.system.versions import built_for, numbers, software
from tests.cli.program import broken, gpubalance, here
from tests.stand_in import TWO_UNLIKE_GPUS, environment


def test_each_version_is_on_a_line_of_its_own() -> None:
    done = gpubalance("--version", code=0)
    to_gpubalance_error, python, tensorflow, keras, driver = done.stdout.splitlines()
    assert to_gpubalance_error == f"gpubalance {package.__version__}"
    assert python == f"Python {platform.python_version()}"
    assert tensorflow.startswith(f"TensorFlow {version('tensorflow')}, built ")
    assert keras == f"Keras {software().keras}"
    assert driver == "no driver: libnvidia-ml.so.1 was not found"
    assert done.stderr == ""


def test_tensorflow_is_not_loaded(tmp_path: Path) -> None:
    """A TensorFlow that can't be loaded is found in its place.

    It has no text that tells what it was built for.
    """
    done = gpubalance("--version", environment=broken(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"TensorFlow {version('tensorflow')}, built without CUDA" in done.stdout


def test_the_driver_is_told_and_no_gpu_opened(tmp_path: Path) -> None:
    lost = TWO_UNLIKE_GPUS + "\nerror count 999\n"
    done = here("--version", environment=environment(tmp_path, lost))
    assert done.stdout.splitlines()[-1] == "driver 550.54.14, up to CUDA 12.4"


def test_a_driver_that_does_not_start_is_no_error(tmp_path: Path) -> None:
    gpus = environment(tmp_path, "nvml 12.550.54.14\ninit_error 18\n")
    (*_, told) = here("--version", code=0, environment=gpus).stdout.splitlines()
    assert told.startswith("no driver: the loaded NVIDIA driver is ")


def test_what_tensorflow_was_built_for_is_what_it_says_itself(tensorflow: Any) -> None:
    build = tensorflow.sysconfig.get_build_info()
    found = software()
    assert numbers(found.tensorflow) == numbers(tensorflow.__version__)
    assert (found.cuda, found.cudnn) == built_for(build)
