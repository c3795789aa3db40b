"""Checks of driver, GPUs, the host's memory and disk, and of TensorFlow's build against these. They
change nothing.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.devices.health import Health, nvidia_cards, read_health
from gpubalance.jobs.doctor.check import check, explained, guarded, ok, skipped
from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes
from gpubalance.remedies import known_error, match
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import ANSWERS_WITHIN_S, within, within_or
from gpubalance.system.state import current_folder, state_folder
from gpubalance.system.versions import numbers, too_old
from gpubalance.workers.messages import Inspected

_OFTEN_HARMLESS = ("hidden", "mig")  # somebody may have chosen it
_FINE = ("ok", "skipped")
Look = Callable[[], tuple[int, Path | None]]
_GIB = 2**30
_CUDNN_WITHOUT_OLD = (9, 11)
_OLD_BEFORE = (7, 5)
# Where the driver should compile TensorFlow's PTX, and by report does not: tensorflow issues 99592,
# 101746, 111958.
_PTX_FAILS_FROM = (12, 0)
# https://github.com/tensorflow/tensorflow/issues/78784: 525.78.01, with TensorFlow 2.18.
_CRASHING_BRANCH, _CRASHES_FROM = 525, (2, 18)
# NCCL moves gradients through it where GPUs can't reach each other; Docker gives 64 MiB.
_SHARED = Path("/dev/shm")  # noqa: S108  (asked for its size, nothing is written)
_CGROUP = Path("/sys/fs/cgroup")
# Below how many free bytes it fails, or is a warning; what is said then; the remedy.
_ROOM = {
    "host-memory": (
        _GIB,
        4 * _GIB,
        ". A worker with TensorFlow and CUDA takes up to 4.00 GiB",
        "close other programs: `ps aux --sort=-rss | head` shows the largest",
    ),
    # Logs, probes, journals are small.
    "disk": (_GIB // 10, _GIB, "", "make room there: `du -xh {} | sort -h | tail`"),
    "shared-memory": (
        0,
        _GIB,
        ". NCCL may need more, and then says «unhandled system error»",
        known_error("nccl-system").remedy,
    ),
}


def driver_checks(reading: Reading) -> Iterator[Check]:
    """The checks of the driver and NVML, whose version is CUDA's major one, then the driver's:
    12.550.54.14.
    """
    driver, cuda, nvml = reading.driver_version, reading.cuda_driver_version, reading.nvml_version
    if reading.problem is not None:
        cards = nvidia_cards()
        here = f" (there is a card at {', '.join(cards)})" if cards else ""
        yield explained("driver", reading.code or "nvml-broken", f"{reading.problem}{here}")
        return
    yield ok(
        "driver",
        f"{driver or 'version ' + NOT_AVAILABLE}{f', for CUDA up to {cuda}' if cuda else ''}",
    )
    if nvml and driver and nvml.partition(".")[2] != driver:
        yield explained(
            "nvml", "driver-mismatch", f"{nvml} belongs to another driver than {driver}", "warning"
        )
    else:
        yield ok(
            "nvml",
            f"{nvml or NOT_AVAILABLE}, {len(reading.gpus)} "
            f"GPU{'' if len(reading.gpus) == 1 else 's'}",
        )


def gpu_checks(gpus: Sequence[Gpu]) -> list[Check]:
    """The checks of each topic on each GPU, its faults first. GPUs with the same result share a
    line.
    """
    labels = dict[Check, list[str]]()
    for gpu in gpus:
        for found in _checks(gpu):
            labels.setdefault(found, []).append(f"GPU:{gpu.index}")
    topics = list(dict.fromkeys(found.code for found in labels))
    in_order = sorted(labels, key=lambda found: (topics.index(found.code), found.status in _FINE))
    return [_of(found, ", ".join(labels[found])) for found in in_order]


def _of(found: Check, gpus: str) -> Check:
    detail = f"{found.detail} ({gpus})" if found.status in _FINE else f"{gpus} {found.detail}"
    return found.model_copy(update={"detail": detail})


def _checks(gpu: Gpu) -> Iterator[Check]:
    if gpu.unusable is None:
        yield ok("gpu", "can be used")
    else:
        row = match(gpu.unusable)
        status: Status = "warning" if row and row.code in _OFTEN_HARMLESS else "failure"
        remedy = (
            row.remedy.replace("-i N", f"-i {gpu.index}")
            if row
            else "see what `nvidia-smi` says about it"
        )
        yield check("gpu", status, f"can't be used: {gpu.unusable}", remedy)
    if not gpu.uuid.startswith("unknown-"):  # it answers
        yield from _health(gpu, within_or(None, lambda: read_health(gpu.uuid)) or Health())


def _health(gpu: Gpu, health: Health) -> Iterator[Check]:
    smi = f"nvidia-smi -i {gpu.index}"
    held = [f"PID {one.pid} holds {format_bytes(one.memory_bytes)}" for one in gpu.processes or ()]
    bad, mend = (
        f"is not alone: {', '.join(held)}",
        "`gpubalance devices` lists them. End those that you do not need",
    )
    yield _judged("processes", held if gpu.processes is not None else None, "none", bad, mend)
    bad = "drives a display, which takes memory and time, and whose watchdog ends long kernels"
    mend = "plug the display in elsewhere, or `sudo systemctl isolate multi-user.target`"
    yield _judged("display", health.display, "none", bad, mend)
    bad = "has persistence off: the driver restarts it for each process, which takes seconds"
    off = None if health.persistence is None else not health.persistence
    yield _judged("persistence", off, "on", bad, f"sudo {smi} -pm 1")
    cap, default = health.power_cap_w or 0.0, health.power_default_w or 0.0
    bad = f"is capped at {cap:.0f} W of {default:.0f} W: slower, but perhaps on purpose"
    yield _judged(
        "power-cap",
        cap < default if cap else None,
        f"{cap:.0f} W",
        bad,
        f"sudo {smi} -pl {default:.0f}",
    )
    reasons = ", ".join(health.throttle_reasons or ())
    cooler = "cool it: fans, dust, room between the cards"
    mend = cooler if "thermal" in reasons else "check its power cables and supply"
    mend += f". `{smi} -q -d PERFORMANCE,TEMPERATURE,POWER` says more"
    yield _judged(
        "throttling", health.throttle_reasons, "none now", f"is throttled now: {reasons}", mend
    )
    lost, mended = health.ecc_uncorrected, health.ecc_corrected
    if lost is None:
        yield skipped("ecc", "the GPU has no ECC, or it is off")
    elif lost:
        bad = (
            f"has {lost} uncorrected memory errors since the driver was loaded: results may be "
            "wrong"
        )
        yield check(
            "ecc",
            "failure",
            bad,
            f"reboot. `{smi} -q -d ECC,ROW_REMAPPER` shows if it continues",
        )
    else:
        yield ok("ecc", f"no uncorrected errors{f', {mended} corrected' if mended else ''}")


def _judged(code: str, wrong: object, good: str, bad: str, remedy: str) -> Check:
    """A check with one of two outcomes, skipped if `wrong` is None: NVML does not say."""
    if wrong is None:
        return skipped(code, "the driver does not say")
    return check(code, "warning", bad, remedy) if wrong else ok(code, good)


def software_checks(
    found: Inspected, reading: Reading | None, gpus: Sequence[Gpu]
) -> Iterator[Check]:
    """The checks of TensorFlow, and of what it needs for GPUs if there are any and it is built for
    them.
    """
    built = (
        f"built for CUDA {found.cuda} and cuDNN {found.cudnn}"
        if found.cuda
        else "built without CUDA"
    )
    detail = f"{found.tensorflow} with Keras {found.keras}, {built}"
    if gpus and found.cuda is None:
        yield check(
            "tensorflow", "failure", detail, "pip install --force-reinstall 'gpubalance[cuda]'"
        )
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
    if numbers(version)[:1] == (_CRASHING_BRANCH,) and numbers(found.tensorflow) >= _CRASHES_FROM:
        detail = (
            f"driver {version} serves CUDA {found.cuda}, and TensorFlow {found.tensorflow} may "
            "crash on it"
        )
        return explained("tensorflow-driver", "driver-crashes", detail, "warning")
    return ok(
        "tensorflow-driver", f"{found.cuda} is served by driver {version or 'of unknown version'}"
    )


def libraries(found: Inspected) -> Check:
    """The check that each CUDA library which TensorFlow wants can be loaded."""
    problems = {name: problem for name, problem in found.libraries.items() if problem is not None}
    if not problems:
        return ok("cuda-libraries", f"all {len(found.libraries)} load")
    broken = [
        problem for name, problem in problems.items() if f"{name}: cannot open" not in problem
    ]
    why = f" ({broken[0]})" if broken else ""
    return explained(
        "cuda-libraries", "cuda-library-missing", f"can't be loaded: {', '.join(problems)}{why}"
    )


def cudnn(found: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check of the loaded cuDNN against TensorFlow's build and each GPU's compute
    capability.
    """
    loaded, built = numbers(found.cudnn_loaded), numbers(found.cudnn)
    if not loaded:
        return skipped("cudnn", "cuDNN was not loaded")
    if loaded[:2] < built[:2]:
        where = f" from {found.cudnn_file}" if found.cudnn_file else ""
        detail = f"{found.cudnn_loaded} was loaded{where}, TensorFlow is built for {found.cudnn}"
        return explained("cudnn", "cudnn-too-old", detail)
    old = [gpu for gpu in gpus if (0,) < numbers(gpu.compute_capability) < _OLD_BEFORE]
    if old and loaded[:2] >= _CUDNN_WITHOUT_OLD:
        detail = f"{found.cudnn_loaded} has no code for {_with_capability(old)}"
        return explained("cudnn", "cudnn-without-this-gpu", detail)
    return ok("cudnn", f"{found.cudnn_loaded}, which has code for these GPUs")


def capabilities(found: Inspected, gpus: Sequence[Gpu]) -> Check:
    """The check that the build has code for each GPU, or at least PTX, which the driver can compile
    for it.

    Code (`sm_60`) runs on GPUs of its major version that are not older, PTX (`compute_90`) on every
    newer one too.
    """
    code = "compute-capability"
    known = [gpu for gpu in gpus if gpu.compute_capability]
    if not known or not found.capabilities:
        return skipped(code, "the driver does not say the compute capability")
    every, ptx = (
        _versions(found.capabilities, "sm|compute"),
        _versions(found.capabilities, "compute"),
    )
    own = {gpu.index: numbers(gpu.compute_capability) for gpu in known}
    slow = [
        gpu
        for gpu in known
        if not any(own[gpu.index][:1] == one[:1] and one <= own[gpu.index] for one in every)
    ]
    without = [gpu for gpu in slow if not any(one <= own[gpu.index] for one in ptx)]
    if without:
        built = ", ".join(found.capabilities)
        return explained(
            code,
            "capability-too-old",
            f"none for {_with_capability(without)}. It is built for {built}",
        )
    too_new = [gpu for gpu in slow if own[gpu.index] >= _PTX_FAILS_FROM]
    if too_new:
        return explained(code, "gpu-too-new", f"none for {_with_capability(too_new)}")
    if slow:
        detail = (
            f"none for {_with_capability(slow)}: the driver compiles it at the first start, for "
            "minutes"
        )
        return check(
            code,
            "warning",
            detail,
            "wait once. `export CUDA_CACHE_MAXSIZE=4294967296` keeps all of it",
        )
    return ok(code, f"for {_with_capability(known)}")


def _versions(capabilities: Sequence[str], kinds: str) -> list[tuple[int, ...]]:
    found = (re.fullmatch(rf"(?:{kinds})_(\d+)(\d)[a-z]?", text) for text in capabilities)
    return [(int(one[1]), int(one[2])) for one in found if one]


def _with_capability(gpus: Sequence[Gpu]) -> str:
    return ", ".join(
        f"GPU:{gpu.index} (compute capability {gpu.compute_capability})" for gpu in gpus
    )


def host_checks(*, gpus: int) -> Iterator[Check]:
    """The checks of memory and disk, and of shared memory if several GPUs may need it."""
    looks: dict[str, Look] = {
        "host-memory": lambda: (available_memory(), None),
        "disk": _least_room,
    }
    if gpus > 1 and _SHARED.is_dir():
        looks["shared-memory"] = lambda: _room(_SHARED)
    for code, look in looks.items():
        yield from guarded(code, looked(code, look))


def looked(code: str, look: Look, seconds: float = ANSWERS_WITHIN_S) -> Iterator[Check]:
    """The check of the free bytes that `look` finds, and in which folder. Raises what it does, and
    if it hangs.
    """
    free, folder = within(look, seconds)
    least, enough, short, mend = _ROOM[code]
    detail = f"{format_bytes(free)} free{f' in {folder}' if folder else ''}"
    status: Status = "failure" if free < least else "warning" if free < enough else "ok"
    if status == "ok":
        yield ok(code, detail)
    else:
        yield check(code, status, f"{detail}{short}", mend.format(folder))


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that programs here can still take: the host's, or what is left of the container's limit
    if that is less.
    """
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (
            (cgroup / name).read_text().strip() for name in ("memory.max", "memory.current")
        )
    except OSError:
        return free
    return min(free, max(0, int(limit) - int(used))) if limit.isdigit() else free


def _room(folder: Path) -> tuple[int, Path]:
    return shutil.disk_usage(folder).free, folder


def _least_room() -> tuple[int, Path]:
    """That of the folders of results and logs which has the least."""
    return min(map(_room, (current_folder(), state_folder("logs"), Path(tempfile.gettempdir()))))
