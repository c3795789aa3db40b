"""CUDA's libraries, found where TensorFlow would find them: small ones that the test compiles."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.stand_in import compiled
from tests.support.late import runtime


def library_in(folder: Path, name: str, code: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "library.c"
    source.write_text(code)
    return compiled(source, folder / name)


def cudnn(number: int) -> str:
    return f"#include <stddef.h>\nsize_t cudnnGetVersion(void) {{ return {number}; }}\n"


def test_a_build_wants_its_own_versions() -> None:
    of_cuda = "cudart.so.12 cublas.so.12 cublasLt.so.12 cufft.so.11 cusolver.so.11 cusparse.so.12"
    names = (*of_cuda.split(), "cudnn.so.9", "nccl.so.2")
    assert runtime.library_names("12.5.1", "9") == tuple(f"lib{name}" for name in names)
    assert runtime.library_names("13.0.1", "9")[0] == "libcudart.so.13"
    assert runtime.library_names(None, None) == ()


def test_nvidias_wheels_are_searched_after_the_users_own_path(tmp_path: Path) -> None:
    library_in(tmp_path / "nvidia" / "cudnn" / "lib", "libcudnn.so.9", cudnn(92100))
    own = library_in(tmp_path / "own", "libcudnn.so.9", cudnn(8904))
    for path, version in ((None, "9.21.0"), (f"/nowhere:{own.parent}", "8.9.4")):
        variables = {"LD_LIBRARY_PATH": path} if path else {}
        library = runtime.load_library("libcudnn.so.9", tmp_path, variables)
        assert runtime.cudnn_version(library) == version


def test_a_library_that_is_missing_or_broken_says_why(tmp_path: Path) -> None:
    missing = runtime.load_library("libnothing-of-this-name.so.9", tmp_path, {})
    assert "cannot open shared object" in str(missing)
    broken = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"half a download")
    problem = runtime.load_library("libnccl.so.2", tmp_path, {})
    assert "too short" in problem or "invalid ELF" in problem


def test_a_library_that_does_not_tell_its_version(tmp_path: Path) -> None:
    library = library_in(tmp_path, "libcudnn.so.9", "int nothing;\n")
    assert runtime.cudnn_version(ctypes.CDLL(str(library))) is None
