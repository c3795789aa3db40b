"""Memory of each device against its limit."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.figure import Figure

from gpubalance.numbers.units import format_bytes, format_percent
from gpubalance.render.report.charts.bars import Key, Row, draw_rows
from gpubalance.render.report.charts.chart import Drawing
from gpubalance.render.report.charts.style import BLUE, INK, VERMILLION, device_name
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.run import Replica, Run
from gpubalance.results.subject import Subject

_GIB = 2.0**30
_PEAK, _LIMIT, _NEEDED = Key("peak", BLUE), Key("limit", INK, "-"), Key("first that fails", VERMILLION, ":")


class _Use(NamedTuple):
    device: int
    batch: int
    peak_bytes: int
    limit_bytes: int | None
    needed_bytes: int | None


def chart(subject: Subject) -> Drawing | str:
    """The peaks as bars. Needs the memory peaks of a run, or of a probe's largest batches."""
    ran = subject.run or subject.independent
    uses = _of_probe(subject) if ran is None else _of_run(subject, ran)
    uses = uses if subject.layers is None else _of_layers(subject, subject.layers)
    if uses:
        return _text(subject, uses), lambda width: _draw(subject, uses, width)
    if subject.plan is not None and subject.run is None:
        return "a plan that was not run has taken no memory: `gpubalance run --plan` measures it"
    return "no device told how much memory it took"


def _of_run(subject: Subject, run: Run | Independent) -> list[_Use]:
    return [
        _Use(
            r.device,
            r.micro_batch if isinstance(r, Replica) else r.batch,
            r.memory_peak_bytes,
            _limit(subject, r.device),
            None,
        )
        for r in run.replicas
        if r.memory_peak_bytes is not None
    ]


def _of_layers(subject: Subject, result: Layers) -> list[_Use]:
    return [
        _Use(s.device, result.micro_batch, s.memory_peak_bytes, _limit(subject, s.device), None)
        for s in result.stages
        if s.memory_peak_bytes is not None
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
    """What the device's allocator may take, or else all of the device's memory."""
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
        name = device_name(subject.devices[use.device], width)
        of = f" of {format_bytes(use.limit_bytes)}" if use.limit_bytes else ""
        known = ((_LIMIT, use.limit_bytes), (_NEEDED, use.needed_bytes))
        marks = tuple((key, size / _GIB) for key, size in known if size)
        right = f"{format_bytes(use.peak_bytes)}{of}"
        rows.append(Row(f"{name}, batch {use.batch}", right, ((_PEAK, use.peak_bytes / _GIB),), marks))
    marked = {key for row in rows for key, _ in row.marks}
    return draw_rows(rows, width, "memory, GiB", [_PEAK, *(key for key in (_LIMIT, _NEEDED) if key in marked)])
