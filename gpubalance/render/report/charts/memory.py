"""Memory of each device against its limit."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gpubalance.numbers.units import format_bytes, format_percent
from gpubalance.render.report.charts.bars import Piece, Row, draw_rows
from gpubalance.render.report.charts.chart import Chart, Missing
from gpubalance.render.report.charts.style import BLUE, INK, VERMILLION, device_name, legend
from gpubalance.render.report.subject import Subject
from gpubalance.results.probe import DeviceProbe

_ID, _TITLE = "memory", "Memory of each device against its limit"
_GIB = 2.0**30


class _Use(NamedTuple):
    device: int
    batch: int
    peak_bytes: int
    limit_bytes: int | None
    needed_bytes: int | None


def chart(subject: Subject) -> Chart | Missing:
    """Needs the memory peaks of a run, or of a probe's largest batches."""
    uses = _of_run(subject) if subject.run is not None else _of_probe(subject)
    if not uses:
        why = "no device told how much memory it took"
        if subject.plan is not None and subject.run is None:
            why = "a plan that was not run has taken no memory: `gpubalance run --plan` measures it"
        return Missing(_ID, _TITLE, why)
    return Chart(_ID, _TITLE, _text(subject, uses), lambda width: _draw(subject, uses, width))


def _of_run(subject: Subject) -> list[_Use]:
    replicas = subject.run.replicas if subject.run is not None else ()
    return [
        _Use(r.device, r.micro_batch, r.memory_peak_bytes, _limit(subject, r.device), None)
        for r in replicas
        if r.memory_peak_bytes is not None
    ]


def _of_probe(subject: Subject) -> list[_Use]:
    if subject.kind != "probe":
        return []
    uses = []
    for i, one in enumerate(subject.probes):
        peaks = _peaks(one) if one is not None else {}
        if one is not None and peaks:
            needed = one.batch_limit.needed_bytes if one.batch_limit is not None else None
            uses.append(_Use(i, max(peaks), peaks[max(peaks)], _limit(subject, i), needed))
    return uses


def _peaks(one: DeviceProbe) -> dict[int, int]:
    """The memory of each batch that trained."""
    trials = one.batch_limit.trials if one.batch_limit is not None else ()
    peaks = {t.batch: t.memory_peak_bytes for t in trials if t.outcome == "fits" and t.memory_peak_bytes is not None}
    return peaks | {p.batch: p.memory_peak_bytes for p in one.curve if p.memory_peak_bytes is not None}


def _limit(subject: Subject, device: int) -> int | None:
    """What the device's allocator may take, or else all memory of the device."""
    one = subject.probes[device]
    known = one.batch_limit.memory_bytes if one is not None and one.batch_limit is not None else None
    return subject.devices[device].memory_bytes if known is None else known


def _text(subject: Subject, uses: list[_Use]) -> str:
    lines = []
    for use in uses:
        of = ""
        if use.limit_bytes:
            part = format_percent(use.peak_bytes / use.limit_bytes)
            of = f" of {format_bytes(use.limit_bytes)}, {part}"
        needs = f"; the next batch asked for {format_bytes(use.needed_bytes)}" if use.needed_bytes else ""
        label = subject.devices[use.device].label
        lines.append(f"{label} at batch {use.batch}: {format_bytes(use.peak_bytes)}{of}{needs}.")
    return " ".join(lines)


def _draw(subject: Subject, uses: list[_Use], width: int) -> Figure:
    rows = []
    for use in uses:
        device = subject.devices[use.device]
        name = device_name(device, width)
        of = f" of {format_bytes(use.limit_bytes)}" if use.limit_bytes else ""
        marks = [(use.limit_bytes / _GIB, INK, "-")] if use.limit_bytes else []
        marks += [(use.needed_bytes / _GIB, VERMILLION, ":")] if use.needed_bytes else []
        piece = Piece(0.0, use.peak_bytes / _GIB, BLUE)
        rows.append(Row(f"{name}, batch {use.batch}", f"{format_bytes(use.peak_bytes)}{of}", (piece,), tuple(marks)))
    made, _ = draw_rows(rows, width, "memory, GiB", 24)
    handles: list[Artist] = [Patch(facecolor=BLUE, label="peak")]
    if any(use.limit_bytes for use in uses):
        handles.append(Line2D([], [], color=INK, linewidth=2.2, label="limit"))
    if any(use.needed_bytes for use in uses):
        handles.append(Line2D([], [], color=VERMILLION, linewidth=2.2, linestyle=":", label="first that fails"))
    legend(made, handles, len(handles))
    return made
