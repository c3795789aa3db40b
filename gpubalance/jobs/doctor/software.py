"""Checks TensorFlow's build against driver, CUDA libraries and GPUs. Pure: a worker's findings are the input."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.jobs.doctor.topic import check, explained, ok, skipped
from gpubalance.results.checkup import Check
from gpubalance.system.versions import numbers, too_old
from gpubalance.workers.messages import Inspected

_CUDNN_WITHOUT_OLD = (9, 11)
_OLD_BEFORE = (7, 5)


def software_checks(found: Inspected, reading: Reading | None, gpus: Sequence[Gpu]) -> list[Check]:
    """The checks of TensorFlow, and of what it needs for GPUs if there are any and it is built for them."""
    built = f"built for CUDA {found.cuda} and cuDNN {found.cudnn}" if found.cuda else "built without CUDA"
    detail = f"{found.tensorflow} with Keras {found.keras}, {built}"
    if gpus and found.cuda is None:
        return [check("tensorflow", "failure", detail, "pip install --force-reinstall 'gpubalance[cuda]'")]
    if reading is None or not gpus:
        return [ok("tensorflow", detail)]
    return [
        ok("tensorflow", detail),
        driver_for_build(found, reading),
        libraries(found),
        cudnn(found, gpus),
        capabilities(found, gpus),
    ]


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
    names = ", ".join(problems)
    broken = [problem for name, problem in problems.items() if f"{name}: cannot open" not in problem]
    why = f" ({broken[0]})" if broken else ""
    return explained("cuda-libraries", "cuda-library-missing", f"can't be loaded: {names}{why}")


def cudnn(found: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check of the loaded cuDNN against TensorFlow's build and each GPU's compute capability."""
    loaded, built = numbers(found.cudnn_loaded), numbers(found.cudnn)
    if not loaded:
        return skipped("cudnn", "cuDNN was not loaded")
    if loaded[: len(built)] < built:
        detail = f"{found.cudnn_loaded} was loaded, TensorFlow is built for {found.cudnn}"
        return explained("cudnn", "cudnn-version", detail)
    old = [gpu for gpu in gpus if (0,) < numbers(gpu.compute_capability) < _OLD_BEFORE]
    if old and loaded[:2] >= _CUDNN_WITHOUT_OLD:
        detail = f"{found.cudnn_loaded} has no code for {_with_capability(old)}"
        return explained("cudnn", "cudnn-without-this-gpu", detail)
    return ok("cudnn", f"{found.cudnn_loaded}, which has code for these GPUs")


def capabilities(found: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check that the build has code for each GPU, or at least PTX, which the driver can compile for it."""
    known = [gpu for gpu in gpus if gpu.compute_capability]
    if not known or not found.capabilities:
        return skipped("compute-capability", "the driver does not say the compute capability")
    without = [gpu for gpu in known if not _runs(gpu, found.capabilities)]
    if without:
        detail = f"none for {_with_capability(without)}; it is built for {', '.join(found.capabilities)}"
        return explained("compute-capability", "capability-too-old", detail)
    compiled = [gpu for gpu in known if not _runs(gpu, found.capabilities, at_once=True)]
    if compiled:
        return check(
            "compute-capability",
            "warning",
            f"none for {_with_capability(compiled)}: the driver compiles it at the first start, for minutes",
            "wait once; `export CUDA_CACHE_MAXSIZE=4294967296` keeps all that it compiled",
        )
    return ok("compute-capability", f"for {_with_capability(known)}")


def _runs(gpu: Gpu, capabilities: Sequence[str], *, at_once: bool = False) -> bool:
    """Whether one of these runs on the GPU; with `at_once`, without compiling PTX for another major version.

    Code (`sm_60`) runs on GPUs of its major version that are not older, PTX (`compute_90`) on every newer one too.
    """
    own = numbers(gpu.compute_capability)
    for text in capabilities:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", text)
        if match:
            built = (int(match[2]), int(match[3]))
            if built <= own and (built[0] == own[0] or (match[1] == "compute" and not at_once)):
                return True
    return False


def _with_capability(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"GPU:{gpu.index} (compute capability {gpu.compute_capability})" for gpu in gpus)
