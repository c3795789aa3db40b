"""GPUs for tests on a machine without any.

The tests compile an NVML library, which the real pynvml loads.

Give a child process the variables of `environment`, or use `loaded` in this process. The top of
nvml.c explains the script's language.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from tests.support import forks
from tests.support.python import python

TWO_UNLIKE_GPUS = r"""
driver 550.54.14
cuda 12040
nvml 12.550.54.14
gpu 0 uuid GPU-1080aaaa-0000-4000-8000-000000000001
gpu 0 name NVIDIA GeForce GTX 1080 Ti
gpu 0 bus 00000000:01:00.0
gpu 0 capability 6 1
gpu 0 memory 11811160064 11700000000
gpu 0 temperature 60
gpu 0 power 120000
gpu 0 power_limit 250000
gpu 0 clock_sm 1900
gpu 0 clock_memory 5505
gpu 0 max_clock_sm 1911
gpu 0 cores 3584
gpu 0 throttle 0
gpu 1 uuid GPU-1080bbbb-0000-4000-8000-000000000002
gpu 1 name NVIDIA GeForce GTX 1080
gpu 1 bus 00000000:02:00.0
gpu 1 capability 6 1
gpu 1 memory 8589934592 8500000000
gpu 1 temperature 55
gpu 1 power 90000
gpu 1 power_limit 180000
gpu 1 clock_sm 1800
gpu 1 clock_memory 5005
gpu 1 max_clock_sm 1911
gpu 1 cores 2560
gpu 1 throttle 0
"""


ROOT = Path(__file__).parents[2]


def environment(folder: Path, script: str) -> dict[str, str]:
    """Variables that make a child process see the GPUs of `script`, which is written into `folder`.

    Add them to the child's own: `os.environ | environment(tmp_path, TWO_UNLIKE_GPUS)`.
    """
    path = folder / "nvml-stand-in.txt"
    path.write_text(script, encoding="utf-8")
    search = [str(_library()), os.environ.get("LD_LIBRARY_PATH", "")]
    paths = {"LD_LIBRARY_PATH": ":".join(filter(None, search))}
    return paths | {"NVML_STAND_IN": str(path)}


@contextmanager
def loaded(variables: Mapping[str, str]) -> Iterator[None]:
    """Makes pynvml in this process see the GPUs of `environment`'s variables inside the block.

    It changes nothing if the variables have no GPUs.

    It loads a copy of the library, which reads its script when it is loaded.
    """
    if "NVML_STAND_IN" not in variables:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVML_STAND_IN", variables["NVML_STAND_IN"])
        library = shutil.copy(_library() / "libnvidia-ml.so.1", folder)
        patch.setattr(pynvml, "nvmlLib", ctypes.CDLL(library))
        patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        yield


def engine(folder: Path, script: str = "") -> dict[str, str]:
    """Variables that give the program's workers an engine that a Python script controls.

    See session.py for the script. The engine needs no TensorFlow, so a command takes at most a
    second. Add `environment`'s variables for GPUs.
    """
    path = folder / "engine-stand-in.py"
    path.write_text(textwrap.dedent(script), encoding="utf-8")
    here = Path(__file__).parent
    own = [str(here / name) for name in ("site", "tensorflow")]
    paths = [*own, os.environ.get("PYTHONPATH", "")]
    return {
        **forks.quick(),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "ENGINE_STAND_IN": str(here / "session.py"),
        "ENGINE_STAND_IN_SCRIPT": str(path),
    }


def child(code: str, variables: dict[str, str], timeout_s: float | None = None) -> str:
    """Runs code in a new Python process, and returns what it prints.

    The process is new because pynvml loads a library once in a process.
    """
    done = python("-c", code, env=variables, timeout=timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled(source: Path, library: Path) -> Path:
    """Compiles a library from C; skips the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build a stand-in with")
    # Without -Bsymbolic, a process with TensorFlow loaded would call its functions of these names.
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    flags.append("-Wl,-Bsymbolic")
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    return library


@functools.cache
def _library() -> Path:
    """The folder of the library, built once for all tests of this process."""
    folder = Path(tempfile.mkdtemp(prefix="gpubalance-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    compiled(Path(__file__).with_name("nvml.c"), folder / "libnvidia-ml.so.1")
    return folder
