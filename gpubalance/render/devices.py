"""The devices as text, with what a GPU's gauges show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.devices.nvml import Gpu, Reading
from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes, format_seconds
from gpubalance.remedies import match
from gpubalance.render.table import WIDTH, prose, shorten, table
from gpubalance.results.timing import Moment, Telemetry
from gpubalance.settings.device import Device
from gpubalance.text import clean

_NAME_WIDTH = 28
_INDENT = " " * 5


def gpus_text(reading: Reading) -> str:
    """Each GPU with its UUID, who uses it and why it can't be used; without a GPU, what to do."""
    if reading.problem:
        return f"{reading.remedy}\nwithout a GPU: --simulate gtx1080ti-gtx1080, or --simulate N"
    driver = reading.driver_version or NOT_AVAILABLE
    cuda = reading.cuda_driver_version or NOT_AVAILABLE
    rows = [
        ("GPU", "name", "bus id", "compute", "memory", "free"),
        *map(_gpu_row, reading.gpus),
    ]
    head, *gpu_lines = table(rows, left=(0, 1, 2))
    lines = [f"driver {driver}, CUDA {cuda}", head]
    for line, gpu in zip(gpu_lines, reading.gpus, strict=True):
        lines.append(line)
        lines += [f"{_INDENT}{fact}" for fact in _facts(gpu)]
        lines += _remedy(gpu)
    return "\n".join(lines)


def hosts_text(hosts: Sequence[tuple[str, Reading]]) -> str:
    """Each host's GPUs under its name."""
    texts = [
        f"{host}\n{reading.problem or gpus_text(reading)}" for host, reading in hosts
    ]
    return "\n\n".join(texts)


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    return (
        str(gpu.index),
        shorten(clean(gpu.name or NOT_AVAILABLE), _NAME_WIDTH),
        gpu.bus_id or NOT_AVAILABLE,
        gpu.compute_capability or NOT_AVAILABLE,
        format_bytes(gpu.memory_bytes),
        format_bytes(gpu.memory_free_bytes),
    )


def _facts(gpu: Gpu) -> Iterator[str]:
    yield gpu.uuid
    for piece in gpu.mig_slices:
        yield f"MIG slice {piece.uuid}, {format_bytes(piece.memory_bytes)}"
    for process in gpu.processes or ():
        name = clean(process.name or "a process", 40)
        pid = "" if process.pid is None else f" (PID {process.pid})"
        yield f"{name}{pid} holds {format_bytes(process.memory_bytes)}"
    if gpu.unusable:
        yield f"can't be used: {gpu.unusable}"


def _remedy(gpu: Gpu) -> list[str]:
    known = match(gpu.unusable) if gpu.unusable else None
    return prose(known.remedy, WIDTH, f"{_INDENT}→ ") if known else []


def simulated_text(devices: Sequence[Device], width: int = WIDTH) -> str:
    """One row, or a sentence if rows are too wide, for each simulated device with its profile."""
    heads = ("device", "name", "a step takes", "memory", "base", "per sample")
    rows = [heads, *map(_simulated_row, devices)]
    return "\n".join(table(rows, left=(0, 1, 2), width=width))


def _simulated_row(device: Device) -> tuple[str, ...]:
    name = shorten(device.name, _NAME_WIDTH)
    profile = device.profile
    if profile is None:
        unknown = [NOT_AVAILABLE] * 3
        return (device.label, name, "its own time", *unknown)
    takes = (
        f"{format_seconds(profile.alpha_s)} + {format_seconds(profile.beta_s)} · batch"
    )
    if profile.curve:
        (smallest, min_s), *_, (largest, max_s) = profile.curve
        minimum = f"{format_seconds(min_s)} for {smallest}"
        takes = f"{minimum} to {format_seconds(max_s)} for {largest}"
    sizes = (profile.memory, profile.base_memory, profile.memory_per_sample)
    return (device.label, name, takes, *map(format_bytes, sizes))


def state_text(gauges: Moment | Telemetry | None) -> str:
    """`83 °C 220 W`, as far as NVML gives them."""
    texts = []
    if gauges is not None and gauges.temperature_c is not None:
        texts.append(f"{gauges.temperature_c} °C")
    if gauges is not None and gauges.power_w is not None:
        texts.append(f"{gauges.power_w:.0f} W")
    return " ".join(texts)


def throttled_text(device: Device, gauges: Moment | None) -> str:
    """`GPU:0 is throttled: power cap`; empty if it is not."""
    if gauges is None or not gauges.throttle_reasons:
        return ""
    return f"{device.label} is throttled: {', '.join(gauges.throttle_reasons)}"
