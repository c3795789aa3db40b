"""Compiles the plugin for the installed TensorFlow, once."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

PLUGIN = Path(__file__).parent / "plugin"
# Whose headers, kernels and texts the plugin was written for.
KNOWN = ("2.20", "2.21")
# TensorFlow looks for plugins in this folder below each entry of sys.path whose name has "site-packages" in it.
_PLACE = Path("site-packages", "tensorflow-plugins")
_NAME = "libfakegpu.so"
# What the compiler has to know of TensorFlow, and whether its build has the kernels of CUDA.
_ASKS = """
import json, os, tensorflow as tf
print(json.dumps({
    "flags": tf.sysconfig.get_compile_flags(),
    "folder": tf.sysconfig.get_lib(),
    "cuda": tf.sysconfig.get_build_info().get("is_cuda_build", False),
}))
"""


class NoFakeGpus(Exception):
    """The plugin can't be compiled here; the text says why."""


@functools.cache
def site_packages() -> Path:
    """The folder that has to be in a process's PYTHONPATH. Compiles the plugin into it the first time.

    Raises NoFakeGpus where there is no compiler, or TensorFlow is one that the plugin does not know.
    """
    release = _tensorflow()
    compiler = shutil.which("g++")
    if compiler is None:
        raise NoFakeGpus("no g++ to compile the fake GPUs with")
    cache = user_cache_path("gpubalance-tests") / "fake-gpu"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    built = cache / f"tensorflow-{release}-{_digest(*_sources())}"
    with _locked(cache / "lock"):
        if not _is_whole(built):
            shutil.rmtree(built, ignore_errors=True)
            _build(compiler, built)
    return built / "site-packages"


def _tensorflow() -> str:
    """The version of TensorFlow, which has to be one that the plugin knows."""
    try:
        release = version("tensorflow")
    except PackageNotFoundError:
        raise NoFakeGpus("the fake GPUs are for the package tensorflow, which is not installed") from None
    if not release.startswith(tuple(f"{known}." for known in KNOWN)):
        raise NoFakeGpus(f"the fake GPUs know TensorFlow {' and '.join(KNOWN)}, not {release}")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NoFakeGpus("the fake GPUs need TensorFlow's build for Linux on x86-64")
    return release


def _sources() -> list[Path]:
    return [*sorted(PLUGIN.glob("*")), Path(__file__)]


def _digest(*files: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Of several processes one compiles, and the others wait for it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_whole(built: Path) -> bool:
    """Whether the library is the one that the compiler wrote."""
    library, digest = built / _PLACE / _NAME, built / "digest"
    return library.is_file() and digest.is_file() and digest.read_text() == _digest(library)


def _build(compiler: str, built: Path) -> None:
    """Compiles into a folder of its own, which gets its name when it is whole."""
    told = _told_of_tensorflow()
    if not told["cuda"]:
        raise NoFakeGpus("the fake GPUs need TensorFlow's build with CUDA, whose kernels they stand for")
    with tempfile.TemporaryDirectory(dir=built.parent, ignore_cleanup_errors=True) as name:
        folder = Path(name) / "whole"
        library = folder / _PLACE / _NAME
        library.parent.mkdir(parents=True)
        command = [compiler, "-O1", "-g0", "-w", "-shared", "-fPIC", "-fvisibility=hidden", *told["flags"]]
        command += [f"-I{PLUGIN}", "-x", "c++", "-", "-o", str(library)]
        command += [f"-L{told['folder']}", "-l:libtensorflow_framework.so.2"]
        # All at once, as reading TensorFlow's headers takes most of the time.
        whole = "".join(f'#include "{source.name}"\n' for source in sorted(PLUGIN.glob("*.cc")))
        done = subprocess.run(command, input=whole, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the fake GPUs do not compile:\n{done.stderr}")
        (folder / "digest").write_text(_digest(library))
        folder.rename(built)


def _told_of_tensorflow() -> dict[str, Any]:
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run([sys.executable, "-c", _ASKS], capture_output=True, text=True, check=True, env=quiet)
    told: dict[str, Any] = json.loads(done.stdout)
    return told
