"""Loads the CUDA libraries that TensorFlow's build wants, as TensorFlow would, to see which are missing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpubalance.system.versions import numbers

# Each library's file name, by CUDA's major version: not all are numbered as CUDA is.
_NAMES = {
    11: ("cudart.so.11.0", "cublas.so.11", "cublasLt.so.11", "cufft.so.10", "cusolver.so.11", "cusparse.so.11"),
    12: ("cudart.so.12", "cublas.so.12", "cublasLt.so.12", "cufft.so.11", "cusolver.so.11", "cusparse.so.12"),
    13: ("cudart.so.13", "cublas.so.13", "cublasLt.so.13", "cufft.so.12", "cusolver.so.12", "cusparse.so.12"),
}


def wanted(cuda: str | None, cudnn: str | None) -> tuple[str, ...]:
    """File names of the libraries of a build for these versions, such as `12.5.1` and `9`; none of a build without."""
    built_for = numbers(cuda)
    if not built_for:
        return ()
    names = _NAMES.get(built_for[0], _NAMES[max(_NAMES)])
    cudnn_major, *_ = numbers(cudnn) or (9,)
    return tuple(f"lib{name}" for name in (*names, f"cudnn.so.{cudnn_major}", "nccl.so.2"))


def load_wanted(
    build: Mapping[str, Any], packages: Path, environment: Mapping[str, str]
) -> list[tuple[str, str | None, str | None]]:
    """Name, path and problem of each library that TensorFlow's `build` wants, as `load` gives them."""
    names = wanted(build.get("cuda_version"), build.get("cudnn_version"))
    return [(name, *load(name, packages, environment)) for name in names]


def load(name: str, packages: Path, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(path, None) of a library that loads, else (None, why).

    Looked for where TensorFlow's own search goes: LD_LIBRARY_PATH, NVIDIA's wheels under `packages` (the folder of
    site-packages), then wherever the system has it.
    """
    found = next(_candidates(name, packages, environment), None)
    try:
        library = ctypes.CDLL(str(found) if found else name)
    except OSError as error:
        return None, str(error)
    return str(found or _mapped(name) or library._name), None


def cudnn_version(path: str) -> str | None:
    """`9.10.2` of a cuDNN that was loaded from there; None where it does not tell."""
    try:
        ask = ctypes.CDLL(path).cudnnGetVersion
    except (OSError, AttributeError):
        return None
    ask.restype = ctypes.c_size_t
    number = int(ask())
    if not number:
        return None
    thousands = 10_000 if number >= 90_000 else 1000  # since 9 there are two digits for each part
    return f"{number // thousands}.{number % thousands // 100}.{number % 100}"


def _candidates(name: str, packages: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    for folder in environment.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and (Path(folder) / name).exists():
            yield Path(folder) / name
    yield from sorted(packages.glob(f"nvidia/*/lib/{name}"))


def _mapped(name: str) -> str | None:
    """Where the system found it, of this process' map of memory."""
    try:
        lines = Path(f"/proc/{os.getpid()}/maps").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(maxsplit=5)[5] for line in lines if f"/{name}" in line), None)
