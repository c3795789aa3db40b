"""Checks TensorFlow's build against driver, CUDA libraries and GPUs. Pure: a worker's findings are the input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.jobs.doctor.check import check, explained, ok, skipped
from gpubalance.results.checkup import Check
from gpubalance.system.versions import numbers, too_old
from gpubalance.workers.messages import Inspected

_CUDNN_WITHOUT_OLD = (9, 11)
_OLD_BEFORE = (7, 5)


def software_checks(found: Inspected, reading: Reading | None, gpus: Sequence[Gpu]) -> Iterator[Check]:
    """The checks of TensorFlow, and of what it needs for GPUs if there are any and it is built for them."""
    built = f"built for CUDA {found.cuda} and cuDNN {found.cudnn}" if found.cuda else "built without CUDA"
    detail = f"{found.tensorflow} with Keras {found.keras}, {built}"
    if gpus and found.cuda is None:
        yield check("tensorflow", "failure", detail, "pip install --force-reinstall 'gpubalance[cuda]'")
        return
    yield ok("tensorflow", detail)
    if reading is not None and gpus:
        yield driver_for_build(found, reading)
        yield libraries(found)
        yield cudnn(found, gpus)
        yield capabilities(found, gpus)


def driver_for_build(found: Inspected, reading: Reading) -> Check:
    """The check of the driver's CUDA version against the one that TensorFlow is built for."""
    serves, version = reading.cuda_driver_version, reading.driver_version
    if not serves:
        return skipped("tensorflow-driver", "the driver does not say which CUDA it serves")
    problem = too_old(version, serves, found.cuda)
    if problem:
        return explained("tensorflow-driver", "driver-too-old", problem)
    return ok("tensorflow-driver", f"{found.cuda} is served by driver {version or 'of unknown version'}")


def libraries(found: Inspected) -> Check:
    """The check that each CUDA library which TensorFlow wants can be loaded."""
    problems = {name: problem for name, problem in found.libraries.items() if problem is not None}
    if not problems:
        return ok("cuda-libraries", f"all {len(found.libraries)} load")
    broken = [problem for name, problem in problems.items() if f"{name}: cannot open" not in problem]
    why = f" ({broken[0]})" if broken else ""
    return explained("cuda-libraries", "cuda-library-missing", f"can't be loaded: {', '.join(problems)}{why}")


def cudnn(found: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check of the loaded cuDNN against TensorFlow's build and each GPU's compute capability."""
    loaded, built = numbers(found.cudnn_loaded), numbers(found.cudnn)
    if not loaded:
        return skipped("cudnn", "cuDNN was not loaded")
    if loaded[: len(built)] < built:
        detail = f"{found.cudnn_loaded} was loaded, TensorFlow is built for {found.cudnn}"
        return explained("cudnn", "cuda-library-missing", detail)
    old = [gpu for gpu in gpus if (0,) < numbers(gpu.compute_capability) < _OLD_BEFORE]
    if old and loaded[:2] >= _CUDNN_WITHOUT_OLD:
        detail = f"{found.cudnn_loaded} has no code for {_with_capability(old)}"
        return explained("cudnn", "cudnn-without-this-gpu", detail)
    return ok("cudnn", f"{found.cudnn_loaded}, which has code for these GPUs")


def capabilities(found: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check that the build has code for each GPU, or at least PTX, which the driver can compile for it.

    Code (`sm_60`) runs on GPUs of its major version that are not older, PTX (`compute_90`) on every newer one too.
    """
    code = "compute-capability"
    known = [gpu for gpu in gpus if gpu.compute_capability]
    if not known or not found.capabilities:
        return skipped(code, "the driver does not say the compute capability")
    every, ptx = _versions(found.capabilities, "sm|compute"), _versions(found.capabilities, "compute")
    own = {gpu.index: numbers(gpu.compute_capability) for gpu in known}
    slow = [gpu for gpu in known if not any(own[gpu.index][:1] == one[:1] and one <= own[gpu.index] for one in every)]
    without = [gpu for gpu in slow if not any(one <= own[gpu.index] for one in ptx)]
    if without:
        built = ", ".join(found.capabilities)
        return explained(code, "capability-too-old", f"none for {_with_capability(without)}. It is built for {built}")
    if slow:
        detail = f"none for {_with_capability(slow)}: the driver compiles it at the first start, for minutes"
        return check(code, "warning", detail, "wait once. `export CUDA_CACHE_MAXSIZE=4294967296` keeps all of it")
    return ok(code, f"for {_with_capability(known)}")


def _versions(capabilities: Sequence[str], kinds: str) -> list[tuple[int, ...]]:
    found = (re.fullmatch(rf"(?:{kinds})_(\d+)(\d)[a-z]?", text) for text in capabilities)
    return [(int(one[1]), int(one[2])) for one in found if one]


def _with_capability(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"GPU:{gpu.index} (compute capability {gpu.compute_capability})" for gpu in gpus)
