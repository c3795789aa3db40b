"""A run as text: one line for each window, and the summary."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gpubalance.numbers.units import format_bytes, format_percent, format_rate, format_seconds
from gpubalance.render.table import WIDTH, prose, shorten, shorten_front, table, table_or_prose
from gpubalance.results.common import Throughput, Warning_
from gpubalance.results.run import Measurement, Replica, Run
from gpubalance.settings.device import Device
from gpubalance.settings.shares import share_text

_NAME_WIDTH = 22


def window_text(number: int, of: int, name: str, devices: Sequence[Device], measured: Measurement) -> str:
    """One line: `GPU:0 [820] 1280 samples/s …` for each device and the total; only the total of the even split."""
    rate = f"{format_rate(measured.throughput.median)} samples/s"
    if name:
        batches = " ".join(map(str, measured.batches))
        return f"window {number} of {of}, the {name} split [{batches}]: {rate}"
    parts = [_window_part(device, replica) for device, replica in zip(devices, measured.replicas, strict=True)]
    step = f"step {format_seconds(measured.step_time_s.median)} sync {format_seconds(measured.sync_s)}"
    return f"window {number} of {of}: {'; '.join([*parts, f'total [{measured.global_batch}] {rate} {step}'])}"


def _window_part(device: Device, replica: Replica) -> str:
    memory = [] if replica.memory_peak_bytes is None else [format_bytes(replica.memory_peak_bytes)]
    parts = [
        f"{device.label} [{share_text(replica.batch, replica.micro_batch)}]",
        f"{format_rate(replica.throughput)} samples/s",
        f"compute {format_seconds(replica.compute_s)}",
        f"wait {format_seconds(replica.wait_s)}",
    ]
    return " ".join([*parts, *memory])


def run_text(run: Run, next_command: str = "", width: int = WIDTH) -> str:
    """The summary: the answer, where each device's time goes, the warnings, and what to do next."""
    lines = [*run_lines(run, width), *warning_lines(run.warnings, width)]
    return "\n".join([*lines, *(["", f"next: {next_command}"] if next_command else [])])


def run_lines(run: Run, width: int) -> list[str]:
    """The summary without its warnings and the next command."""
    lines = [*answer_lines(run, width), "", *_devices(run, width), *_step(run, width)]
    if not run.complete:
        lines += prose("This run was cut short: the figures are of what was measured until then.", width)
    return lines


def answer_lines(run: Run, width: int = WIDTH) -> list[str]:
    """What the split gives, and how that compares."""
    return [line for text in (_answer(run), _against_even(run), _against_solo(run)) for line in prose(text, width)]


def _answer(run: Run) -> str:
    batches = " ".join(map(str, run.batches))
    if run.split.accumulates:
        batches += f" in micro-batches {' '.join(map(str, run.micro_batches))}"
    return f"batches {batches}: {format_rate(run.throughput.median)} samples/s{_plus_minus(run.throughput)}"


def _plus_minus(throughput: Throughput) -> str:
    if throughput.ci95 is None:
        return ""
    half = (throughput.ci95[1] - throughput.ci95[0]) / 2 / throughput.median
    return f" ± {format_percent(half, 1)}"


def _against_even(run: Run) -> str:
    even = run.baselines.even
    if even is None or run.speedup_over_even is None:
        return ""
    if run.split.of_used == even.split:
        return f"this is the even split, {even.split}"
    interval = run.speedup_ci95
    known = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    rate = f"{format_rate(even.throughput.median)} samples/s"
    return f"{run.speedup_over_even:.3f} × the even split {even.split}{known}, which gave {rate}"


def _against_solo(run: Run) -> str:
    if run.scaling_efficiency is None:
        return ""
    efficiency = format_percent(run.scaling_efficiency, 1)
    return f"{efficiency} of what the devices gave alone, {format_rate(run.baselines.solo_sum)} samples/s in sum"


def _devices(run: Run, width: int) -> list[str]:
    names = [shorten(run.devices[replica.device].name, _NAME_WIDTH) for replica in run.replicas]
    rows = _device_rows(run, names)
    # Names give way to a batch in micro-batches. Their ends are kept, as those tell one model from another.
    excess = max(map(len, table(rows))) - WIDTH
    if excess > 0:
        rows = _device_rows(run, [shorten_front(name, max(map(len, names)) - excess) for name in names])
    idle = [d.label for d, batch in zip(run.devices, run.batches, strict=True) if not batch]
    unused = prose(f"{', '.join(idle)}: no samples, left out", width) if idle else []
    return [*table_or_prose(rows, width, left=(0, 1)), *unused]


def _device_rows(run: Run, names: Sequence[str]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("device", "", "batch", "samples/s", "compute", "wait", "used", "memory")]
    for replica, name in zip(run.replicas, names, strict=True):
        rows.append(
            (
                run.devices[replica.device].label,
                name,
                share_text(replica.batch, replica.micro_batch),
                format_rate(replica.throughput),
                format_seconds(replica.compute_s),
                format_seconds(replica.wait_s),
                format_percent(replica.utilisation),
                format_bytes(replica.memory_peak_bytes),
            )
        )
    return rows


def _step(run: Run, width: int) -> list[str]:
    slowest = max(r.compute_s + r.wait_s for r in run.replicas)
    parts = [f"slowest compute {format_seconds(slowest)}", f"sync {format_seconds(run.sync_s)}"]
    if run.settings.input == "host":
        part = run.input_wait_s / run.step_time_s.median
        parts.append(f"waiting for input {format_seconds(run.input_wait_s)} ({format_percent(part, 1)})")
    imbalance = f"; imbalance {run.imbalance:.3f}" if len(run.replicas) > 1 else ""
    return prose(f"step {format_seconds(run.step_time_s.median)} = {' + '.join(parts)}{imbalance}", width)


def warning_lines(warnings: Sequence[Warning_], width: int = WIDTH) -> list[str]:
    """An empty line, then each warning's code, message and remedy; warnings of one kind stand together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for warning in warnings:
        alike.setdefault((warning.code, warning.next), []).append(warning.message)
    lines = [""] if alike else []
    for (code, remedy), messages in alike.items():
        lines += prose(f"warning {code}: {'; '.join(messages)}", width)
        lines += textwrap.wrap(remedy, width, initial_indent="  → ", subsequent_indent="    ")
    return lines
