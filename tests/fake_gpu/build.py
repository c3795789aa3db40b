"""Compiles the plugin for the installed TensorFlow, once."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path

PLUGIN = Path(__file__).parent / "plugin"
# The plugin was written for the headers, kernels and texts of these releases.
KNOWN = ("2.20", "2.21")
# tf.sysconfig.get_compile_flags() says this for these releases. To ask it would take seconds.
_FLAGS = ("-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17", "-DEIGEN_MAX_ALIGN_BYTES=64")
# TensorFlow looks for plugins in this folder below each entry of sys.path that has
# "site-packages" in its name.
_LIBRARY = Path("site-packages", "tensorflow-plugins", "libfakegpu.so")


class NoFakeGpus(Exception):
    """The plugin can't be compiled here; the text says why."""


class Needed(NamedTuple):
    """What the plugin is compiled with and for."""

    compiler: str
    release: str
    tensorflow: Path


@functools.cache
def needed() -> Needed:
    """What it takes to compile the plugin.

    Raises NoFakeGpus where there is no compiler, or TensorFlow is one that the plugin does not
    know.
    """
    release = _release()
    tensorflow = _folder()
    compiler = shutil.which("g++")
    if compiler is None:
        raise NoFakeGpus("no g++ to compile the fake GPUs with")
    return Needed(compiler, release, tensorflow)


@functools.cache
def site_packages() -> Path:
    """The folder that has to be in a process's PYTHONPATH.

    Compiles the plugin into it the first time. Raises NoFakeGpus as `needed` does.
    """
    used = needed()
    cache = user_cache_path("gpubalance-tests") / "fake-gpu"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    sources = [*sorted(PLUGIN.glob("*")), Path(__file__)]
    built = cache / f"tensorflow-{used.release}-{_digest(*sources)}"
    with _locked(cache / "lock"):
        if not built.exists():
            _build(used, built)
    return built / _LIBRARY.parts[0]


def _release() -> str:
    """The version of TensorFlow, which has to be one that the plugin knows."""
    try:
        release = version("tensorflow")
    except PackageNotFoundError:
        why = "the fake GPUs are for the package tensorflow, which is not installed"
        raise NoFakeGpus(why) from None
    if not release.startswith(tuple(f"{known}." for known in KNOWN)):
        known = " and ".join(KNOWN)
        raise NoFakeGpus(f"the fake GPUs know TensorFlow {known}, not {release}")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NoFakeGpus("the fake GPUs need TensorFlow for Linux on x86-64")
    return release


def _folder() -> Path:
    """TensorFlow's folder. Its build has to have CUDA's kernels."""
    spec = find_spec("tensorflow")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    told = runpy.run_path(str(folder / "python/platform/build_info.py"))
    if not told["build_info"]["is_cuda_build"]:
        why = "the fake GPUs need TensorFlow's build with CUDA, whose kernels they stand for"
        raise NoFakeGpus(why)
    return folder


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


def _build(used: Needed, built: Path) -> None:
    """Compiles into a folder of its own, which gets its name when it is whole."""
    with tempfile.TemporaryDirectory(dir=built.parent) as name:
        folder = Path(name) / "whole"
        library = folder / _LIBRARY
        library.parent.mkdir(parents=True)
        _compile(used, library)
        folder.rename(built)


def _compile(used: Needed, library: Path) -> None:
    made = ["-O1", "-g0", "-w", "-shared", "-fPIC", "-fvisibility=hidden", *_FLAGS]
    given = [f"-I{PLUGIN}", f"-I{used.tensorflow / 'include'}", "-x", "c++", "-"]
    linked = [f"-L{used.tensorflow}", "-l:libtensorflow_framework.so.2"]
    # All are compiled at once, as reading TensorFlow's headers takes most of the time.
    sources = sorted(PLUGIN.glob("*.cc"))
    whole = "".join(f'#include "{source.name}"\n' for source in sources)
    command = [used.compiler, *made, *given, "-o", str(library), *linked]
    done = subprocess.run(command, input=whole, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the fake GPUs do not compile:\n{done.stderr}")
