"""CUDA's libraries, found where TensorFlow would find them: small ones that the test compiles."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpubalance.engine.cuda_libraries import cudnn_version, load, wanted


def compiled(folder: Path, name: str, code: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang)")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / name
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"], input=code, text=True, check=True
    )
    return library


def cudnn(number: int) -> str:
    return f"#include <stddef.h>\nsize_t cudnnGetVersion(void) {{ return {number}; }}\n"


def test_a_build_wants_its_own_versions() -> None:
    assert wanted("12.5.1", "9") == (
        "libcudart.so.12",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcufft.so.11",
        "libcusolver.so.11",
        "libcusparse.so.12",
        "libcudnn.so.9",
        "libnccl.so.2",
    )
    assert wanted("11.8", "8")[0] == "libcudart.so.11.0"
    assert wanted(None, None) == ()


def test_nvidias_wheels_are_searched_after_the_users_own_path(tmp_path: Path) -> None:
    wheel = compiled(tmp_path / "nvidia" / "cudnn" / "lib", "libcudnn.so.9", cudnn(92100))
    assert load("libcudnn.so.9", tmp_path, {}) == (str(wheel), None)
    own = compiled(tmp_path / "own", "libcudnn.so.9", cudnn(8904))
    path, problem = load("libcudnn.so.9", tmp_path, {"LD_LIBRARY_PATH": f"/nowhere:{own.parent}"})
    assert (path, problem) == (str(own), None)
    assert cudnn_version(str(wheel)) == "9.21.0"
    assert cudnn_version(str(own)) == "8.9.4"


def test_a_library_that_is_missing_or_broken_says_why(tmp_path: Path) -> None:
    path, problem = load("libnothing-of-this-name.so.9", tmp_path, {})
    assert path is None
    assert problem is not None
    assert "cannot open shared object" in problem
    broken = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"half a download")
    path, problem = load("libnccl.so.2", tmp_path, {})
    assert path is None
    assert problem is not None
    assert "too short" in problem or "invalid ELF" in problem


def test_a_library_that_does_not_tell_its_version(tmp_path: Path) -> None:
    library = compiled(tmp_path, "libcudnn.so.9", "int nothing;\n")
    assert cudnn_version(str(library)) is None
    assert cudnn_version(str(tmp_path / "gone")) is None
