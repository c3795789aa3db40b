"""The driver, NVML, and each GPU as NVML tells of it. Everything is only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.devices.health import Health, nvidia_cards, read_health
from gpubalance.errors import DeadlinePassed
from gpubalance.jobs.doctor.topic import Topic
from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes
from gpubalance.remedies import known, match
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import within

_OFTEN_HARMLESS = ("hidden", "mig")  # somebody wanted it so
_DRIVER = Topic("driver", "driver")
_NVML = Topic("nvml", "NVML")
_GPU = Topic("gpu", "GPU")
_OTHERS = Topic("processes", "other processes")
_DISPLAY = Topic("display", "display")
_PERSISTENCE = Topic("persistence", "persistence")
_POWER = Topic("power-cap", "power cap")
_THROTTLING = Topic("throttling", "throttling")
_ECC = Topic("ecc", "memory errors")
_NOT_TOLD = "the driver does not tell"


def driver_checks(reading: Reading) -> list[Check]:
    """The driver and NVML. Without a driver and a card nothing is wrong, and nothing is said."""
    if reading.problem is None:
        return [_driver(reading), _nvml(reading)]
    row = known(reading.code or "nvml-broken")
    cards = nvidia_cards()
    if reading.code == "no-driver" and not cards:
        return []
    here = f" (there is a card at {', '.join(cards)})" if cards else ""
    return [_DRIVER.known("failure", row, f"{reading.problem}{here}")]


def _driver(reading: Reading) -> Check:
    cuda = reading.cuda_driver_version
    detail = f"{reading.driver_version or 'version ' + NOT_AVAILABLE}{f', for CUDA up to {cuda}' if cuda else ''}"
    return _DRIVER.ok(detail)


def _nvml(reading: Reading) -> Check:
    """NVML's version is CUDA's major and then the driver's that it came with: 12.550.54.14."""
    version, driver = reading.nvml_version, reading.driver_version
    detail = f"{version or NOT_AVAILABLE}, {len(reading.gpus)} GPU{'' if len(reading.gpus) == 1 else 's'}"
    if version and driver and version.partition(".")[2] != driver:
        return _NVML.known("warning", known("driver-mismatch"), f"{version} is not of driver {driver}")
    return _NVML.ok(detail)


def gpu_checks(gpus: Sequence[Gpu]) -> list[Check]:
    """Each topic of each GPU: whatever is not ok on a line of its own, the rest together."""
    answering = [gpu for gpu in gpus if not gpu.uuid.startswith("unknown-")]
    healths = [(gpu, _health(gpu)) for gpu in answering]
    topics = [
        [(gpu, _usable(gpu)) for gpu in gpus],
        [(gpu, _processes(gpu)) for gpu in answering],
        *([(gpu, judge(gpu, health)) for gpu, health in healths] for judge in _JUDGES),
    ]
    return [check for topic in topics for check in _together(topic)]


def _health(gpu: Gpu) -> Health:
    try:
        return within(lambda: read_health(gpu.uuid)) or Health()
    except DeadlinePassed:
        return Health()


def _together(checks: Sequence[tuple[Gpu, Check]]) -> Iterator[Check]:
    """The checks of one topic, with the names of their GPUs. GPUs with the same good result share a line."""
    shared = dict[Check, list[str]]()
    for gpu, check in checks:
        label = f"GPU:{gpu.index}"
        if check.status in ("ok", "skipped"):
            shared.setdefault(check, []).append(label)
        else:
            yield check.model_copy(update={"detail": f"{label} {check.detail}"})
    for check, labels in shared.items():
        yield check.model_copy(update={"detail": f"{check.detail} ({', '.join(labels)})"})


def _usable(gpu: Gpu) -> Check:
    if gpu.unusable is None:
        return _GPU.ok("can be used")
    row = match(gpu.unusable)
    status: Status = "warning" if row and row.code in _OFTEN_HARMLESS else "failure"
    remedy = row.remedy.replace("-i N", f"-i {gpu.index}") if row else "see what `nvidia-smi` says of it"
    return _GPU.check(status, f"can't be used: {gpu.unusable}", remedy)


def _processes(gpu: Gpu) -> Check:
    if gpu.processes is None:
        return _OTHERS.skipped(_NOT_TOLD)
    if not gpu.processes:
        return _OTHERS.ok("none")
    held = ", ".join(f"PID {process.pid} holds {format_bytes(process.memory_bytes)}" for process in gpu.processes)
    return _OTHERS.check(
        "warning", f"is not alone: {held}", "`gpubalance devices` shows whose they are; end those of yours"
    )


def _display(gpu: Gpu, health: Health) -> Check:
    del gpu
    if health.display is None:
        return _DISPLAY.skipped(_NOT_TOLD)
    if not health.display:
        return _DISPLAY.ok("none")
    return _DISPLAY.check(
        "warning",
        "drives a display, which takes memory and time, and whose watchdog ends long kernels",
        "plug the display in elsewhere, or `sudo systemctl isolate multi-user.target`",
    )


def _persistence(gpu: Gpu, health: Health) -> Check:
    if health.persistence is None:
        return _PERSISTENCE.skipped(_NOT_TOLD)
    if health.persistence:
        return _PERSISTENCE.ok("on")
    return _PERSISTENCE.check(
        "warning",
        "has persistence off: the driver restarts it for each process, which takes seconds",
        f"sudo nvidia-smi -i {gpu.index} -pm 1",
    )


def _power(gpu: Gpu, health: Health) -> Check:
    cap, default = health.power_cap_w, health.power_default_w
    if cap is None:
        return _POWER.skipped(_NOT_TOLD)
    if default is None or cap >= default:
        return _POWER.ok(f"{cap:.0f} W")
    return _POWER.check(
        "warning",
        f"is capped at {cap:.0f} W of {default:.0f} W: slower, but maybe so wanted",
        f"sudo nvidia-smi -i {gpu.index} -pl {default:.0f}",
    )


def _throttling(gpu: Gpu, health: Health) -> Check:
    if health.throttle_reasons is None:
        return _THROTTLING.skipped(_NOT_TOLD)
    if not health.throttle_reasons:
        return _THROTTLING.ok("none now")
    hot = any("thermal" in reason for reason in health.throttle_reasons)
    mend = "cool it: fans, dust, room between the cards" if hot else "check its power cables and supply"
    return _THROTTLING.check(
        "warning",
        f"is throttled now: {', '.join(health.throttle_reasons)}",
        f"{mend}; `nvidia-smi -i {gpu.index} -q -d PERFORMANCE,TEMPERATURE,POWER` tells more",
    )


def _ecc(gpu: Gpu, health: Health) -> Check:
    if health.ecc_uncorrected is None:
        return _ECC.skipped("the GPU has no ECC, or it is off")
    if health.ecc_uncorrected:
        return _ECC.check(
            "failure",
            f"has {health.ecc_uncorrected} uncorrected memory errors since the driver was loaded: results may be wrong",
            f"reboot; `nvidia-smi -i {gpu.index} -q -d ECC,ROW_REMAPPER` shows whether it goes on",
        )
    corrected = health.ecc_corrected or 0
    return _ECC.ok(f"no uncorrected errors{f', {corrected} corrected' if corrected else ''}")


_JUDGES: tuple[Callable[[Gpu, Health], Check], ...] = (_display, _persistence, _power, _throttling, _ecc)
