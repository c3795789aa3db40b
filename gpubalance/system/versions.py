"""Versions of the installed software, found without loading it."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes: the oldest Linux driver for each major
# version
_OLDEST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# The first and the last minor version that gpubalance was tested with
TESTED = {"TensorFlow": ((2, 20), (2, 22)), "Keras": ((3, 12), (3, 16))}
_KERAS = ("keras", "keras-nightly")
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")


class Software(NamedTuple):
    """None for what is not installed or, of CUDA and cuDNN, what TensorFlow was built without."""

    tensorflow: str | None
    keras: str | None
    cuda: str | None
    cudnn: str | None


def software() -> Software:
    """The software beside this program; TensorFlow was built for that CUDA and that cuDNN."""
    cuda, cudnn = built_for(_tensorflow_build())
    return Software(
        tensorflow=_version(_TENSORFLOW),
        keras=_version(_KERAS),
        cuda=cuda,
        cudnn=cudnn,
    )


def built_for(build: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The versions of CUDA and cuDNN, by what `tf.sysconfig.get_build_info()` returns.

    TensorFlow 2.22.0rc0 leaves them out there: then they are those that the package asks for.
    """
    cuda, cudnn = build.get("cuda_version"), build.get("cudnn_version")
    if build.get("is_cuda_build"):
        cuda = cuda or _asked_for("nvidia-cuda-runtime-cu")
        cudnn = cudnn or min_cudnn()
    return cuda, cudnn


def numbers(version: str | None) -> tuple[int, ...]:
    """(12, 5, 1) for `12.5.1`; empty for an unknown version."""
    return tuple(map(int, re.findall(r"\d+", version or "")))


class Untested(NamedTuple):
    """That a library is newer than what gpubalance was tested with."""

    text: str
    remedy: str


def untested(tensorflow: str | None, keras: str | None) -> Untested | None:
    """Which of TensorFlow and Keras is newer than what was tested; None if neither is."""
    for name, version in (("Keras", keras), ("TensorFlow", tensorflow)):
        first, last = (".".join(map(str, tested)) for tested in TESTED[name])
        if numbers(version)[:2] > TESTED[name][1]:
            above = f"{TESTED[name][1][0]}.{TESTED[name][1][1] + 1}"
            return Untested(
                f"gpubalance was tested with {name} {first} to {last}, not with "
                f"{version}",
                f"pip install '{name.lower()}>={first},<{above}'",
            )
    return None


def min_cudnn() -> str | None:
    """The oldest cuDNN that TensorFlow says it needs, such as `9.3.0.75`; None if it does not say.

    Its build info has the major version only.
    """
    return _asked_for("nvidia-cudnn-cu")


def _asked_for(package: str) -> str | None:
    """The lowest version that TensorFlow asks for of a package whose name goes on with a number."""
    if _version(("tensorflow",)) is None:
        return None
    for requirement in importlib.metadata.requires("tensorflow") or ():
        match = re.match(rf"{package}\d+\b.*>=([\d.]+)", requirement)
        if match:
            return match[1]
    return None


def too_old(
    driver: str | None, serves: str | None, built_for: str | None
) -> str | None:
    """Why a driver that serves CUDA up to `serves` can't run TensorFlow; None if it can.

    A driver serves every CUDA of its own major version (minor-version compatibility), and older
    ones. An unknown version passes.
    """
    served = numbers(serves)
    needed = numbers(built_for)
    if not served or not needed or served[0] >= needed[0]:
        return None
    oldest = _OLDEST_DRIVER.get(needed[0])
    needs = f", which needs driver {oldest} or newer" if oldest else ""
    return (
        f"driver {driver or 'of unknown version'} supports CUDA up to {serves}, but "
        f"TensorFlow is built for CUDA {built_for}{needs}"
    )


def _version(names: Sequence[str]) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _tensorflow_build() -> dict[str, Any]:
    """What `tf.sysconfig.get_build_info()` returns, parsed from its source.

    Loading TensorFlow takes seconds.
    """
    try:
        package = importlib.util.find_spec("tensorflow")
        if package is None or package.origin is None:
            return {}
        path = Path(package.origin).parent / "python" / "platform" / "build_info.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        (call,) = (node.value for node in tree.body if isinstance(node, ast.Assign))
        if not isinstance(call, ast.Call):
            return {}
        return dict(ast.literal_eval(call.args[0]))
    except (OSError, ValueError, SyntaxError, IndexError, TypeError):
        # TensorFlow's build generates the file; in another form it says nothing
        return {}
