"""The devices as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gpubalance.devices.gpus import Gpu, Reading
from gpubalance.numbers.units import NOT_AVAILABLE, format_bytes, format_seconds
from gpubalance.remedies import match
from gpubalance.render.table import shorten, table
from gpubalance.settings.device import Device
from gpubalance.text import clean

_NAME_WIDTH = 28


def gpus_text(reading: Reading) -> str:
    """Each GPU with its UUID, who uses it and why it can't be used; without a GPU, what to do."""
    if reading.problem:
        return f"{reading.remedy}\nwithout a GPU: --simulate FILE or --simulate N"
    head = f"driver {reading.driver_version or NOT_AVAILABLE}, CUDA {reading.cuda_driver_version or NOT_AVAILABLE}"
    rows = [("GPU", "name", "bus id", "compute", "memory", "free"), *map(_gpu_row, reading.gpus)]
    title, *lines = table(rows, left=(0, 1, 2))
    return "\n".join([head, title, *(line for pair in zip(lines, reading.gpus, strict=True) for line in _lines(*pair))])


def hosts_text(hosts: Sequence[tuple[str, Reading]]) -> str:
    """Each host's GPUs under its name."""
    return "\n\n".join(f"{host}\n{reading.problem or gpus_text(reading)}" for host, reading in hosts)


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    return (
        str(gpu.index),
        shorten(clean(gpu.name or NOT_AVAILABLE), _NAME_WIDTH),
        gpu.bus_id or NOT_AVAILABLE,
        gpu.compute_capability or NOT_AVAILABLE,
        format_bytes(gpu.memory_bytes),
        format_bytes(gpu.memory_free_bytes),
    )


def _lines(row: str, gpu: Gpu) -> list[str]:
    lines = [row, f"     {gpu.uuid}"]
    for slice_ in gpu.mig_slices:
        lines.append(f"     MIG slice {slice_.uuid}, {format_bytes(slice_.memory_bytes)}")
    for process in gpu.processes or ():
        name = clean(process.name or "a process", 40)
        pid = "" if process.pid is None else f" (PID {process.pid})"
        lines.append(f"     {name}{pid} holds {format_bytes(process.memory_bytes)}")
    if gpu.unusable:
        lines.append(f"     can't be used: {gpu.unusable}")
        known = match(gpu.unusable)
        lines += textwrap.wrap(known.remedy, 80, initial_indent="     → ", subsequent_indent="       ") if known else []
    return lines


def simulated_text(devices: Sequence[Device]) -> str:
    """One row for each simulated device, with its profile."""
    rows = [("device", "name", "a step takes", "memory", "base", "per sample"), *map(_simulated_row, devices)]
    return "\n".join(table(rows, left=(0, 1, 2)))


def _simulated_row(device: Device) -> tuple[str, ...]:
    name, profile = shorten(device.name, _NAME_WIDTH), device.profile
    if profile is None:
        return (device.label, name, "its own time", *[NOT_AVAILABLE] * 3)
    return (
        device.label,
        name,
        f"{format_seconds(profile.alpha_s)} + {format_seconds(profile.beta_s)} · batch",
        format_bytes(profile.memory),
        format_bytes(profile.base_memory),
        format_bytes(profile.memory_per_sample),
    )
