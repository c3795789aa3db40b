"""The driver, NVML, and each GPU as NVML tells of it. Everything is only read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.devices.health import Health, nvidia_cards, read_health
from gpubalance.errors import DeadlinePassed
from gpubalance.jobs.doctor.guard import of_row
from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes
from gpubalance.remedies import known, match
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import within

_OFTEN_HARMLESS = ("hidden", "mig")


class Finding(NamedTuple):
    """What is found of one GPU; `next` is what to do."""

    status: Status
    detail: str
    next: str | None = None


def driver_checks(reading: Reading) -> list[Check]:
    """The driver and NVML. Where there is neither a driver nor a card, nothing is wrong, and nothing is said."""
    if reading.problem is None:
        return [_driver(reading), _nvml(reading)]
    row = known(reading.code or "nvml-broken")
    cards = nvidia_cards()
    if reading.code == "no-driver" and not cards:
        return []
    here = f" (there is a card at {', '.join(cards)})" if cards else ""
    return [of_row("driver", "failure", "driver", row, f"{reading.problem}{here}")]


def _driver(reading: Reading) -> Check:
    cuda = reading.cuda_driver_version
    detail = f"{reading.driver_version or 'version ' + NOT_AVAILABLE}{f', for CUDA up to {cuda}' if cuda else ''}"
    return Check(code="driver", status="ok", what="driver", detail=detail)


def _nvml(reading: Reading) -> Check:
    """NVML's version is CUDA's major and then the driver's that it came with: 12.550.54.14."""
    version, driver = reading.nvml_version, reading.driver_version
    detail = f"{version or NOT_AVAILABLE}, {len(reading.gpus)} GPU{'' if len(reading.gpus) == 1 else 's'}"
    if version and driver and version.partition(".")[2] != driver:
        row = known("driver-mismatch")
        return of_row("nvml", "warning", "NVML", row, f"{version} is not of driver {driver}")
    return Check(code="nvml", status="ok", what="NVML", detail=detail)


def gpu_checks(gpus: Sequence[Gpu]) -> list[Check]:
    """Each topic of each GPU: what is not ok on a line of its own, the others together."""
    checks = _topic("gpu", "GPU", [(gpu, usable(gpu)) for gpu in gpus])
    answering = [gpu for gpu in gpus if not gpu.uuid.startswith("unknown-")]
    checks += _topic("processes", "other processes", [(gpu, _processes(gpu)) for gpu in answering])
    healths = [(gpu, _health(gpu)) for gpu in answering]
    for code, what, judge in _TOPICS:
        checks += _topic(code, what, [(gpu, judge(gpu, health)) for gpu, health in healths])
    return checks


def _health(gpu: Gpu) -> Health:
    try:
        return within(lambda: read_health(gpu.uuid)) or Health()
    except DeadlinePassed:
        return Health()


def _topic(code: str, what: str, findings: Sequence[tuple[Gpu, Finding]]) -> list[Check]:
    """The checks of one topic. GPUs of which the same is good, or not told, share a line."""
    checks, shared = [], dict[tuple[Status, str], list[str]]()
    for gpu, finding in findings:
        label = f"GPU:{gpu.index}"
        if finding.status in ("ok", "skipped"):
            shared.setdefault((finding.status, finding.detail), []).append(label)
        else:
            detail = f"{label} {finding.detail}"
            checks.append(Check(code=code, status=finding.status, what=what, detail=detail, next=finding.next))
    for (status, detail), labels in shared.items():
        checks.append(Check(code=code, status=status, what=what, detail=f"{detail} ({', '.join(labels)})"))
    return checks


def usable(gpu: Gpu) -> Finding:
    """Whether work can be put on it, and else why not."""
    if gpu.unusable is None:
        return Finding("ok", "can be used")
    row = match(gpu.unusable)
    status: Status = "warning" if row and row.code in _OFTEN_HARMLESS else "failure"
    remedy = row.remedy.replace("-i N", f"-i {gpu.index}") if row else "see what `nvidia-smi` says of it"
    return Finding(status, f"can't be used: {gpu.unusable}", remedy)


def _processes(gpu: Gpu) -> Finding:
    if gpu.processes is None:
        return Finding("skipped", "the driver does not tell")
    if not gpu.processes:
        return Finding("ok", "none")
    held = ", ".join(f"PID {process.pid} holds {format_bytes(process.memory_bytes)}" for process in gpu.processes)
    return Finding("warning", f"is not alone: {held}", "`gpubalance devices` shows whose they are; end those of yours")


def _display(gpu: Gpu, health: Health) -> Finding:
    del gpu
    if health.display is None:
        return _UNKNOWN
    if not health.display:
        return Finding("ok", "none")
    return Finding(
        "warning",
        "drives a display, which takes memory and time, and whose watchdog ends long kernels",
        "plug the display in elsewhere, or `sudo systemctl isolate multi-user.target`",
    )


def _persistence(gpu: Gpu, health: Health) -> Finding:
    if health.persistence is None:
        return _UNKNOWN
    if health.persistence:
        return Finding("ok", "on")
    return Finding(
        "warning",
        "has persistence off: the driver starts it anew for each process, which takes seconds",
        f"sudo nvidia-smi -i {gpu.index} -pm 1",
    )


def _power(gpu: Gpu, health: Health) -> Finding:
    cap, default = health.power_cap_w, health.power_default_w
    if cap is None:
        return _UNKNOWN
    if default is None or cap >= default:
        return Finding("ok", f"{cap:.0f} W")
    return Finding(
        "warning",
        f"is capped at {cap:.0f} W of {default:.0f} W: slower, but maybe so wanted",
        f"sudo nvidia-smi -i {gpu.index} -pl {default:.0f}",
    )


def _throttling(gpu: Gpu, health: Health) -> Finding:
    if health.throttle_reasons is None:
        return _UNKNOWN
    if not health.throttle_reasons:
        return Finding("ok", "none now")
    hot = any("thermal" in reason for reason in health.throttle_reasons)
    mend = "cool it: fans, dust, room between the cards" if hot else "check its power cables and supply"
    return Finding(
        "warning",
        f"is throttled now: {', '.join(health.throttle_reasons)}",
        f"{mend}; `nvidia-smi -i {gpu.index} -q -d PERFORMANCE,TEMPERATURE,POWER` tells more",
    )


def _ecc(gpu: Gpu, health: Health) -> Finding:
    if health.ecc_uncorrected is None:
        return Finding("skipped", "the GPU has no ECC, or it is off")
    if health.ecc_uncorrected:
        return Finding(
            "failure",
            f"has {health.ecc_uncorrected} uncorrected memory errors since the driver was loaded: results may be wrong",
            f"reboot; `nvidia-smi -i {gpu.index} -q -d ECC,ROW_REMAPPER` shows whether it goes on",
        )
    corrected = health.ecc_corrected or 0
    return Finding("ok", f"no uncorrected errors{f', {corrected} corrected' if corrected else ''}")


_UNKNOWN = Finding("skipped", "the driver does not tell")
_TOPICS: tuple[tuple[str, str, Callable[[Gpu, Health], Finding]], ...] = (
    ("display", "display", _display),
    ("persistence", "persistence", _persistence),
    ("power-cap", "power cap", _power),
    ("throttling", "throttling", _throttling),
    ("ecc", "memory errors", _ecc),
)
