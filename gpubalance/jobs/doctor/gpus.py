"""Checks of the driver, NVML, and each GPU as NVML describes it. They never change a setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.devices.health import Health, nvidia_cards, read_health
from gpubalance.jobs.doctor.topic import check, explained, ok, skipped
from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes
from gpubalance.remedies import match
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import within_or

_OFTEN_HARMLESS = ("hidden", "mig")  # somebody may have chosen it
_NOT_TOLD = "the driver does not say"


def driver_checks(reading: Reading) -> list[Check]:
    """The checks of the driver and NVML."""
    if reading.problem is not None:
        cards = nvidia_cards()
        here = f" (there is a card at {', '.join(cards)})" if cards else ""
        return [explained("driver", reading.code or "nvml-broken", f"{reading.problem}{here}")]
    driver, cuda = reading.driver_version, reading.cuda_driver_version
    detail = f"{driver or 'version ' + NOT_AVAILABLE}{f', for CUDA up to {cuda}' if cuda else ''}"
    return [ok("driver", detail), _nvml(reading)]


def _nvml(reading: Reading) -> Check:
    """The check that NVML is the driver's: its version is CUDA's major one, then the driver's, as in 12.550.54.14."""
    version, driver = reading.nvml_version, reading.driver_version
    if version and driver and version.partition(".")[2] != driver:
        return explained("nvml", "driver-mismatch", f"{version} belongs to another driver than {driver}", "warning")
    return ok("nvml", f"{version or NOT_AVAILABLE}, {len(reading.gpus)} GPU{'' if len(reading.gpus) == 1 else 's'}")


def gpu_checks(gpus: Sequence[Gpu]) -> list[Check]:
    """The checks of each topic on each GPU: one line for each fault; GPUs that are fine share a line."""
    topics = dict[str, list[tuple[Gpu, Check]]]()
    for gpu in gpus:
        for found in _checks(gpu):
            topics.setdefault(found.code, []).append((gpu, found))
    return [found for topic in topics.values() for found in _together(topic)]


def _together(checks: Sequence[tuple[Gpu, Check]]) -> Iterator[Check]:
    """The checks of one topic, with the names of their GPUs. GPUs with the same good result share a line."""
    shared = dict[Check, list[str]]()
    for gpu, found in checks:
        label = f"GPU:{gpu.index}"
        if found.status in ("ok", "skipped"):
            shared.setdefault(found, []).append(label)
        else:
            yield found.model_copy(update={"detail": f"{label} {found.detail}"})
    for found, labels in shared.items():
        yield found.model_copy(update={"detail": f"{found.detail} ({', '.join(labels)})"})


def _checks(gpu: Gpu) -> Iterator[Check]:
    yield _usable(gpu)
    if not gpu.uuid.startswith("unknown-"):  # it answers
        yield _processes(gpu)
        yield from _health(gpu.index, within_or(None, lambda: read_health(gpu.uuid)) or Health())


def _usable(gpu: Gpu) -> Check:
    if gpu.unusable is None:
        return ok("gpu", "can be used")
    row = match(gpu.unusable)
    status: Status = "warning" if row and row.code in _OFTEN_HARMLESS else "failure"
    remedy = row.remedy.replace("-i N", f"-i {gpu.index}") if row else "see what `nvidia-smi` says of it"
    return check("gpu", status, f"can't be used: {gpu.unusable}", remedy)


def _processes(gpu: Gpu) -> Check:
    held = [f"PID {process.pid} holds {format_bytes(process.memory_bytes)}" for process in gpu.processes or ()]
    return _judged(
        "processes",
        None if gpu.processes is None else bool(held),
        "none",
        f"is not alone: {', '.join(held)}",
        "`gpubalance devices` lists them; end those that you do not need",
    )


def _judged(code: str, wrong: bool | None, good: str, bad: str, remedy: str) -> Check:
    """A check with one of two outcomes, skipped if `wrong` is None: NVML does not say."""
    if wrong is None:
        return skipped(code, _NOT_TOLD)
    return check(code, "warning", bad, remedy) if wrong else ok(code, good)


def _health(index: int, health: Health) -> Iterator[Check]:
    yield _judged(
        "display",
        health.display,
        "none",
        "drives a display, which takes memory and time, and whose watchdog ends long kernels",
        "plug the display in elsewhere, or `sudo systemctl isolate multi-user.target`",
    )
    yield _judged(
        "persistence",
        None if health.persistence is None else not health.persistence,
        "on",
        "has persistence off: the driver restarts it for each process, which takes seconds",
        f"sudo nvidia-smi -i {index} -pm 1",
    )
    cap, default = health.power_cap_w or 0.0, health.power_default_w or 0.0
    yield _judged(
        "power-cap",
        cap < default if cap else None,
        f"{cap:.0f} W",
        f"is capped at {cap:.0f} W of {default:.0f} W: slower, but perhaps on purpose",
        f"sudo nvidia-smi -i {index} -pl {default:.0f}",
    )
    reasons = health.throttle_reasons
    hot = any("thermal" in reason for reason in reasons or ())
    mend = "cool it: fans, dust, room between the cards" if hot else "check its power cables and supply"
    yield _judged(
        "throttling",
        None if reasons is None else bool(reasons),
        "none now",
        f"is throttled now: {', '.join(reasons or ())}",
        f"{mend}; `nvidia-smi -i {index} -q -d PERFORMANCE,TEMPERATURE,POWER` says more",
    )
    yield _memory_errors(index, health)


def _memory_errors(index: int, health: Health) -> Check:
    if health.ecc_uncorrected is None:
        return skipped("ecc", "the GPU has no ECC, or it is off")
    if health.ecc_uncorrected:
        return check(
            "ecc",
            "failure",
            f"has {health.ecc_uncorrected} uncorrected memory errors since the driver was loaded: results may be wrong",
            f"reboot; `nvidia-smi -i {index} -q -d ECC,ROW_REMAPPER` shows whether it goes on",
        )
    return ok("ecc", f"no uncorrected errors{f', {health.ecc_corrected} corrected' if health.ecc_corrected else ''}")
