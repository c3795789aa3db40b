"""Printed summaries of results of real runs (data/): `python -m tests.render.golden` writes them.

The results were made on simulated devices by

    gpubalance balance --simulate configs/gtx1080ti-gtx1080.toml -o pair-balance.json
    gpubalance run --simulate configs/gtx1080ti-gtx1080.toml --batches 820 568 -o pair-run.json
    gpubalance independent --simulate configs/gtx1080ti-gtx1080.toml --batches 1024 512 -o pair-independent.json
    gpubalance layers --simulate configs/gtx1080ti-gtx1080-large-model.toml -o pair-layers.json
    gpubalance balance --simulate configs/four-unlike.toml -o four-balance.json

and the probes, which the two `balance` made, are pair-probe.json and four-probe.json. What a report
says of such results, and what its charts draw, is kept beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from gpubalance.cli.next_command import layers_uses, uses
from gpubalance.devices.nvml import Gpu, GpuProcess, MigSlice, Reading
from gpubalance.render.checkup import model_text
from gpubalance.render.devices import gpus_text, hosts_text, simulated_text
from gpubalance.render.layers import cut_done_text, pipe_window_text
from gpubalance.render.live import LiveSplit, joint_lines, own_lines, probe_lines
from gpubalance.render.plan import round_text
from gpubalance.render.probe import point_text, trial_text
from gpubalance.render.queue import begun_text, ended_text
from gpubalance.render.report.charts import charts_of
from gpubalance.render.report.charts.chart import NARROW, WIDE, Chart, drawing
from gpubalance.render.report.text import csv_text, markdown, summary_of
from gpubalance.render.run import window_text
from gpubalance.render.table import summary
from gpubalance.render.tensorboard import Summaries
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import Reported, read_record, read_result
from gpubalance.results.subject import ReportSubject, warnings_of
from tests.jobs.probes import QUICK, devices_of
from tests.render import samples
from tests.support.altered import altered
from tests.support.known import known

DATA = Path(__file__).with_name("data")
GOLDEN = Path(__file__).with_name("golden")
NAMES = ["pair-balance", "pair-run", "pair-independent", "pair-layers", "pair-probe"]
NAMES += ["four-balance", "four-probe"]
# On 40 columns one of each kind: a split with warnings, a cut, a curve.
NARROW_ONES = ("pair-balance", "pair-layers", "pair-probe")
WIDTHS = (80, 40)
SUMMARIES = [*((name, 80) for name in NAMES), *((name, 40) for name in NARROW_ONES)]
REPORTS = (
    *("pair-on-gpus", "pair-plan", "pair-run", "pair-probe", "goodput", "pair-layers"),
    *("queue", "queue-cut-short", "contended", "fed-run", "rough-probe"),
)
# Of which the CSV is kept too: there is one of each kind.
CSV = ("goodput", "queue")


def told(
    result: Reported, following: str = "", script: Sequence[str] = (), width: int = 80
) -> str:
    """A result's summary, as the program prints it."""
    return summary(summary_of(result), warnings_of(result), following, script, width)


def kept(name: str, width: int) -> str:
    """What the program prints for the result of that name."""
    result = read_result(DATA / f"{name}.json")
    profile = f"configs/{'gtx1080ti-gtx1080' if name.startswith('pair') else 'four-unlike'}.toml"
    gpus = " ".join(str(device.index) for device in result.devices)
    if isinstance(result, Plan):
        return told(result, *uses(result, profile, Path("plan.json")), width)
    if isinstance(result, Layers):
        uses_of = layers_uses(Path(f"{name}.json"), None, result.settings)
        return told(result, *uses_of, width)
    following = f"gpubalance balance --simulate {profile} --gpus {gpus}"
    return told(result, following, (), width)


def path(name: str, width: int) -> Path:
    """The file of a summary."""
    return GOLDEN / f"{name}-{width}.txt"


def subject(name: str) -> ReportSubject:
    """The result of a report, by the name of its files."""
    if name == "pair-on-gpus":
        return samples.with_telemetry(samples.subject(samples.BALANCE, samples.PROBE))
    made = {"goodput": samples.goodput, "contended": samples.contended}
    made |= {"fed-run": samples.fed_run, "rough-probe": samples.rough_probe}
    if name in made:
        return made[name]()
    if name.startswith("queue"):
        queue = samples.queue(complete=name == "queue")
        return ReportSubject(f"{name}.json", queue, (None, None))
    return samples.subject(DATA / f"{name}.json")


def report(name: str) -> dict[str, str]:
    """What a report has of the result of that name, by the files that keep it."""
    of = subject(name)
    charts = charts_of(of)
    lines = [f"no {title}: {why}" for title, why in charts.missing.items()]
    for chart in charts.drawn:
        lines += [f"# {chart.id}: {chart.title}", chart.text, *_drawn(chart, WIDE)]
        if name == "pair-run":
            lines += _drawn(chart, NARROW)
    texts = {f"{name}-charts.txt": "\n".join(lines), f"{name}.md": markdown([of])}
    if name in CSV:
        texts[f"{name}.csv"] = csv_text([of])
    if name not in NAMES:
        texts[f"{name}-80.txt"] = told(of.result)
    return texts


def _drawn(chart: Chart, width: int) -> Iterator[str]:
    """What a chart draws, each thing in a line, with three digits."""
    with drawing("golden"):
        figure = chart.draw(width)
    yield f"{width} px, {_numbers(figure.get_size_inches())} inches"
    for legend in figure.legends:
        labels = " | ".join(text.get_text() for text in legend.texts)
        yield f"legend: {labels}"
    for axes in figure.axes:
        spans = f"{_numbers(axes.get_xlim())} by {_numbers(axes.get_ylim())}"
        yield f"axes {axes.get_xlabel()} | {axes.get_ylabel()}: {spans}"
        for bar in axes.patches:
            box: Any = bar.get_bbox()  # type: ignore[attr-defined]
            colour = to_hex(bar.get_facecolor())
            yield f"bar {_numbers(box.bounds)} {colour} {bar.get_hatch() or ''}"
        for line in axes.lines:
            data: Any = line.get_xydata()
            ends = data[[0, len(data) // 2, -1]] if len(data) else data
            style = f"{line.get_linestyle()} {line.get_marker()} {line.get_markerfacecolor()}"
            look = f"{line.get_color()} {style}"
            yield f"line of {len(data)}: {_numbers(np.ravel(ends))} {look}"
        for text in axes.texts:
            place = _numbers(text.get_position())
            look = f"{text.get_horizontalalignment()} {text.get_fontweight()}"
            yield f"text {place} {look}: {text.get_text()}"
        for collection in axes.collections:
            for path_ in collection.get_paths():
                corners: Any = path_.vertices
                yield f"area {_numbers([*corners.min(axis=0), *corners.max(axis=0)])}"


def _numbers(values: Any) -> str:
    return " ".join(f"{float(value):.3g}" for value in values)


def live() -> Iterator[str]:
    """Screens of a split, of models of their own and of a probe, of several widths."""
    plan = known(samples.with_telemetry(samples.subject(samples.BALANCE)).plan)
    run = known(plan.run)
    split = LiveSplit(plan.devices, run.batches, run.step_time_s.median)
    even = LiveSplit(plan.devices, (600, 600))
    even.rates.extend([1500.0, 1600.0])
    split.rates.extend([2000.0 + number % 7 for number in range(40)])
    for row, replica in zip(split.rows, run.replicas, strict=True):
        row.compute_s = replica.compute_s
        row.memory_bytes = replica.memory_peak_bytes
        row.gauges = known(replica.telemetry).course[50]
        row.rates = {"samples/s": replica.throughput, "alone": 900.0, "at once": 850.0}
    probes = read_record(samples.PROBE, Probe).probes
    curves = [(plan.devices[one.device], one.curve) for one in probes]
    for width in (100, 64, 36):
        yield f"# {width} columns"
        for lines in (
            joint_lines({"": split, "even": even}, width, 24),
            own_lines(split.rows[::-1], width, 24),
            probe_lines(curves, width, 14),
        ):
            yield from (line.plain.rstrip() for line in lines)


def events() -> Iterator[str]:
    """TensorBoard's events of a balance, each scalar in a line."""
    plan = known(samples.with_telemetry(samples.subject(samples.BALANCE)).plan)
    run = known(plan.run)
    first = plan.devices[0]
    told = Summaries(plan.settings, "balance")
    found = []
    for probe in read_record(samples.PROBE, Probe).probes:
        found += told.point(first, probe.curve[0], 900.0)
    found += told.solo_done(first, 950.0)
    for tried in known(plan.balance).rounds:
        found += told.round(tried, plan.devices, 1000.0)
    for name, measured in (("", run), ("even", known(run.baselines.even)), ("", run)):
        found += told.window(name, plan.devices, measured, 2000.0)
    for where, wall_s, step, of in [*found, *told.done(3000.0)]:
        (one,) = of.value
        yield f"{where} {step} at {wall_s:.3f}: {one.tag} {one.simple_value:.4g}"


def lines() -> Iterator[str]:
    """What commands tell of devices, and of each thing that they have measured."""
    plan = known(samples.subject(samples.BALANCE).plan)
    balance = known(plan.balance)
    run = known(plan.run)
    probe = read_record(samples.PROBE, Probe)
    layers = read_record(DATA / "pair-layers.json", Layers)
    for tried in balance.rounds:
        yield round_text(tried, plan.devices)
    for name in ("", "even", "held"):
        yield window_text(2, 3, name, plan.devices, run)
    for one in probe.probes:
        device = probe.devices[one.device]
        yield from (point_text(device, point) for point in one.curve[:2])
        for trial in known(one.batch_limit).trials:
            yield trial_text(device, trial)
    for cut in layers.rounds:
        for ran_out in (None, 1):
            full = altered(cut, step_time_s=None, ran_out=ran_out)
            yield cut_done_text(full, layers.devices, layers.global_batch)
        yield cut_done_text(cut, layers.devices, layers.global_batch)
    yield pipe_window_text(1, 2, 1234.5, 0.25)
    yield pipe_window_text(3, 2, 1234.5, 0.25)
    left = plan.devices[1]
    for command in samples.queue(complete=False).commands[:5]:
        yield begun_text(left, command)
        yield ended_text(left, command, left if command.number == 2 else None)
    model = probe.model
    given = (("d", 32, 9000), ("d", None, 200), ("d", 0, None), (None, None, 1))
    for data, own, count in given:
        yield model_text(known(model), data, own, count)
    curved = altered(QUICK, curve=((8, 0.05), (64, 0.2)))
    plain = altered(left, profile=None)
    yield simulated_text([*plan.devices, *devices_of(curved), plain])
    used = GpuProcess(pid=7, name="python", memory_bytes=3 << 30)
    piece = MigSlice(uuid="MIG-1", name=None, memory_bytes=5 << 30)
    of_b: Any = {"processes": (used,), "mig_slices": (piece,)}
    gpus = (
        Gpu(index=0, uuid="GPU-a", name="A100", bus_id="01:00", memory_bytes=40 << 30),
        Gpu(index=1, uuid="GPU-b", unusable="GPU is lost: reboot", **of_b),
    )
    reading = Reading(driver_version="550", gpus=gpus)
    problem = Reading(problem="no driver", remedy="install one")
    yield hosts_text([("alpha", reading), ("beta", problem)])
    yield gpus_text(problem)


TEXTS = {"live.txt": live, "events.txt": events, "lines.txt": lines}


if __name__ == "__main__":
    for one, lines_of in TEXTS.items():
        (GOLDEN / one).write_text("\n".join(lines_of()) + "\n", encoding="utf-8")
    for one in REPORTS:
        for name, text in report(one).items():
            (GOLDEN / name).write_text(text + "\n", encoding="utf-8")
    for one, columns in SUMMARIES:
        path(one, columns).write_text(kept(one, columns) + "\n", encoding="utf-8")
