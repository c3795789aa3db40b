"""TensorFlow's build against the driver, its CUDA libraries, and the GPUs. Pure: what a worker found out comes in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.jobs.doctor.topic import Topic
from gpubalance.remedies import known
from gpubalance.results.checkup import Check
from gpubalance.system.versions import numbers, too_old
from gpubalance.workers.messages import Inspected

_CUDNN_WITHOUT_OLD = (9, 11)
_OLD_BEFORE = (7, 5)
TENSORFLOW = Topic("tensorflow", "TensorFlow")
_DRIVER = Topic("tensorflow-driver", "TensorFlow's CUDA")
_LIBRARIES = Topic("cuda-libraries", "CUDA libraries")
_CUDNN = Topic("cudnn", "cuDNN")
_CAPABILITIES = Topic("compute-capability", "TensorFlow's code")


def software_checks(found: Inspected, reading: Reading | None, gpus: Sequence[Gpu]) -> list[Check]:
    """Of TensorFlow alone where there is no GPU that it could be for."""
    checks = [_tensorflow(found, gpus)]
    if reading is None or not gpus or found.cuda is None:
        return checks
    return [*checks, driver_for_build(found, reading), libraries(found), cudnn(found, gpus), capabilities(found, gpus)]


def _tensorflow(found: Inspected, gpus: Sequence[Gpu]) -> Check:
    built = f"built for CUDA {found.cuda} and cuDNN {found.cudnn}" if found.cuda else "built without CUDA"
    detail = f"{found.tensorflow} with Keras {found.keras}, {built}"
    wrong = bool(gpus) and found.cuda is None
    remedy = "pip install --force-reinstall 'gpubalance[cuda]'"
    return TENSORFLOW.check("failure", detail, remedy) if wrong else TENSORFLOW.ok(detail)


def driver_for_build(found: Inspected, reading: Reading) -> Check:
    """The CUDA that the driver serves against the one that TensorFlow is built for."""
    serves, version = reading.cuda_driver_version, reading.driver_version
    if not numbers(serves) or not numbers(found.cuda):
        return _DRIVER.skipped("the driver does not tell which CUDA it serves")
    problem = too_old(version, serves, found.cuda)
    if problem:
        return _DRIVER.known("failure", known("driver-too-old"), problem)
    detail = f"{found.cuda} is served by driver {version or 'of unknown version'}"
    return _DRIVER.ok(detail)


def libraries(found: Inspected) -> Check:
    """Each CUDA library that TensorFlow wants, loaded."""
    missing = [library for library in found.libraries if library.path is None]
    if not missing:
        return _LIBRARIES.ok(f"all {len(found.libraries)} load")
    names = ", ".join(library.name for library in missing)
    broken = [library for library in missing if f"{library.name}: cannot open" not in (library.problem or "")]
    why = f" ({broken[0].problem})" if broken else ""
    return _LIBRARIES.known("failure", known("cuda-library-missing"), f"can't be loaded: {names}{why}")


def cudnn(found: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The cuDNN that was loaded against the build and against each GPU's compute capability."""
    loaded = numbers(found.cudnn_loaded)
    if not loaded:
        return _CUDNN.skipped("none was loaded")
    built = numbers(found.cudnn)
    if built and loaded[: len(built)] < built:
        detail = f"{found.cudnn_loaded} was loaded, TensorFlow is built for {found.cudnn}"
        return _CUDNN.known("failure", known("cudnn-version"), detail)
    old = [gpu for gpu in gpus if (0,) < numbers(gpu.compute_capability) < _OLD_BEFORE]
    if old and loaded[:2] >= _CUDNN_WITHOUT_OLD:
        detail = f"{found.cudnn_loaded} has no code for {_with_capability(old)}"
        return _CUDNN.known("failure", known("cudnn-without-this-gpu"), detail)
    return _CUDNN.ok(f"{found.cudnn_loaded}, which has code for these GPUs")


def capabilities(found: Inspected, gpus: Sequence[Gpu]) -> Check:
    """Whether the build has code for each GPU, or at least what the driver makes code of (PTX)."""
    told = [gpu for gpu in gpus if gpu.compute_capability]
    if not told or not found.capabilities:
        return _CAPABILITIES.skipped("the compute capability is not told")
    without = [gpu for gpu in told if not _runs(gpu, found.capabilities)]
    compiled = [gpu for gpu in told if gpu not in without and not _has_code(gpu, found.capabilities)]
    if without:
        detail = f"none for {_with_capability(without)}; it is built for {', '.join(found.capabilities)}"
        return _CAPABILITIES.known("failure", known("capability-too-old"), detail)
    if compiled:
        return _CAPABILITIES.check(
            "warning",
            f"none for {_with_capability(compiled)}: the driver compiles it at the first start, for minutes",
            "wait once; `export CUDA_CACHE_MAXSIZE=4294967296` keeps all of what it compiled",
        )
    return _CAPABILITIES.ok(f"for {_with_capability(told)}")


def _has_code(gpu: Gpu, capabilities: Sequence[str]) -> bool:
    """Code runs on every GPU of its major version that is not older."""
    own = numbers(gpu.compute_capability)
    return any(built[0] == own[0] and built <= own for built in map(_capability, capabilities) if built)


def _runs(gpu: Gpu, capabilities: Sequence[str]) -> bool:
    own = numbers(gpu.compute_capability)
    ptx = [_capability(text) for text in capabilities if text.startswith("compute_")]
    return _has_code(gpu, capabilities) or any(built and built <= own for built in ptx)


def _capability(text: str) -> tuple[int, ...]:
    """(6, 0) of `sm_60`."""
    match = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[a-z]?", text)
    return (int(match[1]), int(match[2])) if match else ()


def _with_capability(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"GPU:{gpu.index} (compute capability {gpu.compute_capability})" for gpu in gpus)
