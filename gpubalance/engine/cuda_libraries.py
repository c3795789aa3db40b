"""Loads the CUDA libraries that TensorFlow's build wants, to see which are missing."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

from gpubalance.system.versions import numbers

# Each library's file name, by CUDA's major version: not all have CUDA's number.
_NAMES = {
    12: (
        "cudart.so.12",
        "cublas.so.12",
        "cublasLt.so.12",
        "cufft.so.11",
        "cusolver.so.11",
        "cusparse.so.12",
    ),
    13: (
        "cudart.so.13",
        "cublas.so.13",
        "cublasLt.so.13",
        "cufft.so.12",
        "cusolver.so.12",
        "cusparse.so.12",
    ),
}


def wanted(cuda: str | None, cudnn: str | None) -> tuple[str, ...]:
    """File names of the libraries for a build with these versions, such as `12.5.1` and `9`.

    There are none without CUDA.
    """
    built_for = numbers(cuda)
    if not built_for:
        return ()
    names = _NAMES.get(built_for[0], _NAMES[max(_NAMES)])
    cudnn_major, *_ = numbers(cudnn) or (9,)
    return tuple(
        f"lib{name}" for name in (*names, f"cudnn.so.{cudnn_major}", "nccl.so.2")
    )


def load(
    name: str, packages: Path, environment: Mapping[str, str]
) -> ctypes.CDLL | str:
    """The library, or why it can't be loaded.

    Searches where TensorFlow does: LD_LIBRARY_PATH, NVIDIA's wheels under `packages` (the
    site-packages folder), then the system's paths.
    """
    files = []
    for folder in environment.get("LD_LIBRARY_PATH", "").split(":"):
        file = Path(folder) / name
        if folder and file.exists():
            files.append(str(file))
    files += map(str, sorted(packages.glob(f"nvidia/*/lib/{name}")))
    files.append(name)
    try:
        return ctypes.CDLL(files[0])
    except OSError as error:
        return str(error)


def cudnn_version(cudnn: ctypes.CDLL) -> str | None:
    """The version, such as `9.10.2`; None if the library does not report one."""
    try:
        ask = cudnn.cudnnGetVersion
    except AttributeError:
        return None
    ask.restype = ctypes.c_size_t
    number = int(ask())
    if not number:
        return None
    thousands = 10_000 if number >= 90_000 else 1000  # since 9 each part has two digits
    return f"{number // thousands}.{number % thousands // 100}.{number % 100}"
