"""Checks of TensorFlow's build against the driver and the GPUs. They change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpubalance.devices.nvml import Gpu, Reading
from gpubalance.jobs.doctor.check import check, explained, ok, remedy_of, skipped
from gpubalance.results.checkup import Check
from gpubalance.system.versions import numbers, too_old
from gpubalance.workers.messages import Inspect, Inspected
from gpubalance.workers.worker_group import WorkerGroup

_CUDNN_WITHOUT_OLD = (9, 11)
_OLD_BEFORE = (7, 5)
# Where the driver should compile TensorFlow's PTX, and by report does not: tensorflow issues 99592,
# 101746, 111958.
_PTX_FAILS_FROM = (12, 0)
# https://github.com/tensorflow/tensorflow/issues/78784: 525.78.01, with TensorFlow 2.18.
_CRASHING_BRANCH = 525
_CRASHES_FROM = (2, 18)

Version = tuple[int, ...]


def inspect(worker_group: WorkerGroup) -> Inspected:
    """What a worker says of TensorFlow and its libraries."""
    with worker_group.worker() as worker:
        return worker.ask(Inspect(), Inspected)


def software_checks(
    inspected: Inspected, reading: Reading | None, gpus: Sequence[Gpu]
) -> Iterator[Check]:
    """The checks of TensorFlow, and of what it needs for GPUs.

    The latter if there are any and it is built for them.
    """
    built = "built without CUDA"
    if inspected.cuda:
        built = f"built for CUDA {inspected.cuda} and cuDNN {inspected.cudnn}"
    detail = f"{inspected.tensorflow} with Keras {inspected.keras}, {built}"
    if gpus and inspected.cuda is None:
        remedy = "pip install --force-reinstall '.[cuda]' in gpubalance's checkout"
        yield check("tensorflow", "failure", detail, remedy)
        return
    yield ok("tensorflow", detail)
    if reading is not None and gpus:
        yield driver_for_build(inspected, reading)
        yield libraries(inspected)
        yield cudnn(inspected, gpus)
        yield capabilities(inspected, gpus)


def driver_for_build(inspected: Inspected, reading: Reading) -> Check:
    """The check of the driver's CUDA version against the one that TensorFlow is built for."""
    code = "tensorflow-driver"
    serves = reading.cuda_driver_version
    if not serves:
        return skipped(
            code, "the driver does not report which CUDA version it supports"
        )
    driver = reading.driver_version
    problem = too_old(driver, serves, inspected.cuda)
    if problem:
        return explained(code, "driver-too-old", problem)
    if (
        numbers(driver)[:1] == (_CRASHING_BRANCH,)
        and numbers(inspected.tensorflow) >= _CRASHES_FROM
    ):
        crashes = (
            f"TensorFlow {inspected.tensorflow} is reported to crash with it "
            "(TensorFlow issue 78784)"
        )
        detail = (
            f"driver {driver} is new enough for CUDA {inspected.cuda}, but {crashes}"
        )
        return check(code, "warning", detail, remedy_of("driver-too-old"))
    return ok(
        code,
        f"{inspected.cuda} is supported by driver {driver or 'of unknown version'}",
    )


def libraries(inspected: Inspected) -> Check:
    """The check that each CUDA library which TensorFlow wants can be loaded."""
    problems = {}
    for name, problem in inspected.libraries.items():
        if problem is not None:
            problems[name] = problem
    if not problems:
        return ok("cuda-libraries", f"all {len(inspected.libraries)} load")
    detail = f"can't be loaded: {', '.join(problems)}"
    for name, problem in problems.items():
        if f"{name}: cannot open" not in problem:  # it is there, and broken
            detail += f" ({problem})"
            break
    return explained("cuda-libraries", "cuda-library-missing", detail)


def cudnn(inspected: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check of the loaded cuDNN against TensorFlow's build and each GPU's capability."""
    loaded = numbers(inspected.cudnn_loaded)
    if not loaded:
        return skipped("cudnn", "cuDNN was not loaded")
    if loaded[:2] < numbers(inspected.cudnn)[:2]:
        where = f" from {inspected.cudnn_file}" if inspected.cudnn_file else ""
        of_loaded = f"{inspected.cudnn_loaded} was loaded{where}"
        detail = f"{of_loaded}, TensorFlow is built for {inspected.cudnn}"
        return explained("cudnn", "cudnn-too-old", detail)
    old = [gpu for gpu in gpus if (0,) < numbers(gpu.compute_capability) < _OLD_BEFORE]
    if old and loaded[:2] >= _CUDNN_WITHOUT_OLD:
        detail = f"{inspected.cudnn_loaded} has no code for {_with_capability(old)}"
        return explained("cudnn", "cudnn-without-this-gpu", detail)
    return ok("cudnn", f"{inspected.cudnn_loaded}, which has code for these GPUs")


def capabilities(inspected: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check that the build has code for each GPU, or PTX that the driver compiles for it.

    Code (`sm_60`) runs on GPUs of its major version that are not older, PTX (`compute_90`) on every
    newer one too.
    """
    code = "compute-capability"
    known = [gpu for gpu in gpus if gpu.compute_capability]
    if not known or not inspected.capabilities:
        return skipped(code, "the driver does not report the compute capability")
    built_for = _versions(inspected.capabilities, "sm|compute")
    slow = [gpu for gpu in known if not _has_code(gpu, built_for)]
    oldest_ptx = min(_versions(inspected.capabilities, "compute"), default=None)
    without = [
        gpu for gpu in slow if oldest_ptx is None or _capability(gpu) < oldest_ptx
    ]
    if without:
        built = ", ".join(inspected.capabilities)
        detail = f"none for {_with_capability(without)}. It is built for {built}"
        return explained(code, "capability-too-old", detail)
    too_new = [gpu for gpu in slow if _capability(gpu) >= _PTX_FAILS_FROM]
    if too_new:
        return explained(code, "gpu-too-new", f"none for {_with_capability(too_new)}")
    if slow:
        compiles = "the driver compiles it at the first start, which takes minutes"
        return check(
            code,
            "warning",
            f"none for {_with_capability(slow)}: {compiles}",
            "wait. `export CUDA_CACHE_MAXSIZE=4294967296` makes the cache large enough "
            "for all compiled code, so that later starts are fast",
        )
    return ok(code, f"for {_with_capability(known)}")


def _has_code(gpu: Gpu, built_for: Sequence[Version]) -> bool:
    own = _capability(gpu)
    return any(version[:1] == own[:1] and version <= own for version in built_for)


def _capability(gpu: Gpu) -> Version:
    return numbers(gpu.compute_capability)


def _versions(capabilities: Sequence[str], kinds: str) -> list[Version]:
    versions: list[Version] = []
    for text in capabilities:
        parts = re.fullmatch(rf"(?:{kinds})_(\d+)(\d)[a-z]?", text)
        if parts:
            versions.append((int(parts[1]), int(parts[2])))
    return versions


def _with_capability(gpus: Sequence[Gpu]) -> str:
    texts = [
        f"GPU:{gpu.index} (compute capability {gpu.compute_capability})" for gpu in gpus
    ]
    return ", ".join(texts)
