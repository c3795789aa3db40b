"""Checks of the driver, NVML, and each GPU as NVML describes it. They never change a setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.devices.health import Health, nvidia_cards, read_health
from gpubalance.jobs.doctor.check import check, explained, ok, skipped
from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes
from gpubalance.remedies import match
from gpubalance.results.checkup import Check, Status
from gpubalance.system.deadlines import within_or

_OFTEN_HARMLESS = ("hidden", "mig")  # somebody may have chosen it
_FINE = ("ok", "skipped")


def driver_checks(reading: Reading) -> Iterator[Check]:
    """The checks of the driver and NVML, whose version is CUDA's major one, then the driver's: 12.550.54.14."""
    driver, cuda, nvml = reading.driver_version, reading.cuda_driver_version, reading.nvml_version
    if reading.problem is not None:
        cards = nvidia_cards()
        here = f" (there is a card at {', '.join(cards)})" if cards else ""
        yield explained("driver", reading.code or "nvml-broken", f"{reading.problem}{here}")
        return
    yield ok("driver", f"{driver or 'version ' + NOT_AVAILABLE}{f', for CUDA up to {cuda}' if cuda else ''}")
    if nvml and driver and nvml.partition(".")[2] != driver:
        yield explained("nvml", "driver-mismatch", f"{nvml} belongs to another driver than {driver}", "warning")
    else:
        yield ok("nvml", f"{nvml or NOT_AVAILABLE}, {len(reading.gpus)} GPU{'' if len(reading.gpus) == 1 else 's'}")


def gpu_checks(gpus: Sequence[Gpu]) -> list[Check]:
    """The checks of each topic on each GPU, its faults first. GPUs with the same result share a line."""
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
    yield _usable(gpu)
    if not gpu.uuid.startswith("unknown-"):  # it answers
        held = [f"PID {process.pid} holds {format_bytes(process.memory_bytes)}" for process in gpu.processes or ()]
        shared = None if gpu.processes is None else bool(held)
        mend = "`gpubalance devices` lists them. End those that you do not need"
        yield _judged("processes", shared, "none", f"is not alone: {', '.join(held)}", mend)
        yield from _health(gpu.index, within_or(None, lambda: read_health(gpu.uuid)) or Health())


def _usable(gpu: Gpu) -> Check:
    if gpu.unusable is None:
        return ok("gpu", "can be used")
    row = match(gpu.unusable)
    status: Status = "warning" if row and row.code in _OFTEN_HARMLESS else "failure"
    remedy = row.remedy.replace("-i N", f"-i {gpu.index}") if row else "see what `nvidia-smi` says of it"
    return check("gpu", status, f"can't be used: {gpu.unusable}", remedy)


def _judged(code: str, wrong: bool | None, good: str, bad: str, remedy: str) -> Check:
    """A check with one of two outcomes, skipped if `wrong` is None: NVML does not say."""
    if wrong is None:
        return skipped(code, "the driver does not say")
    return check(code, "warning", bad, remedy) if wrong else ok(code, good)


def _health(index: int, health: Health) -> Iterator[Check]:
    smi = f"nvidia-smi -i {index}"
    bad = "drives a display, which takes memory and time, and whose watchdog ends long kernels"
    mend = "plug the display in elsewhere, or `sudo systemctl isolate multi-user.target`"
    yield _judged("display", health.display, "none", bad, mend)
    bad = "has persistence off: the driver restarts it for each process, which takes seconds"
    off = None if health.persistence is None else not health.persistence
    yield _judged("persistence", off, "on", bad, f"sudo {smi} -pm 1")
    cap, default = health.power_cap_w or 0.0, health.power_default_w or 0.0
    bad = f"is capped at {cap:.0f} W of {default:.0f} W: slower, but perhaps on purpose"
    capped = cap < default if cap else None
    yield _judged("power-cap", capped, f"{cap:.0f} W", bad, f"sudo {smi} -pl {default:.0f}")
    reasons = None if health.throttle_reasons is None else ", ".join(health.throttle_reasons)
    mend = "check its power cables and supply"
    if "thermal" in (reasons or ""):
        mend = "cool it: fans, dust, room between the cards"
    mend += f". `{smi} -q -d PERFORMANCE,TEMPERATURE,POWER` says more"
    throttled = None if reasons is None else bool(reasons)
    yield _judged("throttling", throttled, "none now", f"is throttled now: {reasons}", mend)
    lost, mended = health.ecc_uncorrected, health.ecc_corrected
    if lost is None:
        yield skipped("ecc", "the GPU has no ECC, or it is off")
    elif lost:
        bad = f"has {lost} uncorrected memory errors since the driver was loaded: results may be wrong"
        mend = f"reboot. `{smi} -q -d ECC,ROW_REMAPPER` shows whether it goes on"
        yield check("ecc", "failure", bad, mend)
    else:
        yield ok("ecc", f"no uncorrected errors{f', {mended} corrected' if mended else ''}")
