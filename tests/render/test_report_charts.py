"""Charts draw what was measured, are whole and readable, and say what is missing."""

from __future__ import annotations

import logging
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gpubalance.jobs.plan.plan import plan_of_times
from gpubalance.jobs.plan.times import read_times
from gpubalance.render.report.charts import charts_of
from gpubalance.render.report.charts.bars import Bar, Key, Row, rows_chart
from gpubalance.render.report.charts.chart import (
    COMPUTE,
    HATCHES,
    NARROW,
    SYNC,
    VARIABLES,
    WAIT,
    WIDE,
    Chart,
    drawing,
    look,
)
from gpubalance.render.report.leads import steps_of
from gpubalance.render.run import large_losses
from gpubalance.results.subject import ReportSubject
from gpubalance.settings.planning import PlanRequest
from tests.cli.program import ROOT
from tests.jobs.probes import inside
from tests.render import samples
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

pytestmark = pytest.mark.xdist_group("page")


def drawn(subject: ReportSubject, id_: str) -> Chart:
    return next(one for one in charts_of(subject).drawn if one.id == id_)


def figure_of(chart: Chart) -> Figure:
    with drawing("test"):
        return chart.draw(WIDE)


def bars(chart: Chart) -> list[Rectangle]:
    patches = figure_of(chart).axes[0].patches
    return [patch for patch in patches if isinstance(patch, Rectangle)]


def test_the_bars_of_a_step_are_its_times_and_those_of_the_gap_all_of_it() -> None:
    subject = samples.subject(samples.BALANCE)
    steps = steps_of(subject)
    run = known(subject.run)
    assert [step.title for step in steps] == ["Even split", "Chosen split"]
    assert steps[0].parts[0].wait_s == known(run.baselines.even).replicas[0].wait_s
    wanted = []
    for step in steps:
        for part in step.parts:
            of_device = (part.compute_s, part.wait_s, step.sync_s, part.update_s)
            wanted += [
                1e3 * seconds for seconds in (step.input_wait_s, *of_device) if seconds
            ]
    found = bars(drawn(subject, "step"))
    assert [bar.get_width() for bar in found] == pytest.approx(wanted)
    hatches = {bar.get_hatch() or "" for bar in found}
    assert hatches >= {"", HATCHES[WAIT], HATCHES[SYNC]}
    batches = f"{known(run.baselines.even).global_batch} and {run.global_batch}"
    assert f"Their global batches differ: {batches}" in drawn(subject, "step").text
    alike = inside(run, "baselines", even=altered(run, batches=run.batches[::-1]))
    says = "global batches differ"
    assert says not in drawn(replace(subject, result=alike), "step").text
    # The even split is above the chosen one, and each row ends with the step.
    assert found[0].get_y() > found[-1].get_y()
    ends = [bar.get_x() + bar.get_width() for bar in found]
    longest_s = max(step.step_time_s for step in steps)
    assert max(ends) == pytest.approx(longest_s * 1e3, rel=0.01)
    gap = known(known(known(subject.plan).balance).solo_gap)
    lost = [bar.get_width() for bar in bars(drawn(subject, "gap"))]
    missing = gap.solo_sum - gap.throughput
    assert sum(lost) == pytest.approx(missing, abs=1e-3 * gap.solo_sum)
    rates = [part.rate for part in large_losses(subject.devices, gap)]
    assert lost == pytest.approx(rates)


@cases("wide", 0.01, 100.0)
def test_only_what_is_seen_is_in_a_legend(wide: float) -> None:
    """Bars of a ten-thousandth of the axis or less are not, however long the axis is."""
    keys = [Key(name, COMPUTE) for name in ("whole", "seen", "hardly", "none")]
    lengths = (wide, -2e-4 * wide, 0.9e-4 * wide, 0.0)
    bars = [Bar(key, 0.0, part) for key, part in zip(keys, lengths, strict=True)]
    mark = Key("mark", SYNC)
    _, draw = rows_chart([Row("row", "", bars, {mark: 0.5 * wide})], "s")
    with drawing("test"):
        (legend,) = draw(WIDE).legends
    shown = {text.get_text() for text in legend.texts}
    assert shown == {"whole", "seen", "mark"}
    _, draw = rows_chart([Row("row", "", [Bar(keys[0], 0.0, -wide / 2), *bars])], "s")
    with drawing("test"):
        (axes,) = draw(WIDE).axes
    ends = (-0.53 * wide, 1.03 * wide)  # of 1.5 times that width
    assert axes.get_xlim() == pytest.approx(ends)


def test_the_even_split_s_step_is_shown_if_it_is_another() -> None:
    subject = samples.subject(samples.RUN)
    run = known(subject.run)
    for even, count in ((None, 1), (run, 1), (run.baselines.even, 2)):
        result = inside(run, "baselines", even=even)
        assert len(steps_of(replace(subject, result=result))) == count


def test_many_samples_are_drawn_as_a_band(tmp_path: Path) -> None:
    document = samples.document(samples.RUN)
    times = [0.05 + 0.001 * (i % 7) for i in range(5000)]
    at_s = [0.05 * i for i in range(5000)]
    document["step_time_s"] |= {"samples": times, "at_s": at_s}
    long = samples.subject(samples.written(tmp_path, "long.json", document))
    chart = drawn(long, "course")
    assert len(chart.svg("x", WIDE)) < 60_000
    (band,) = figure_of(chart).axes[0].collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((50, 56))


def test_with_its_probe_a_plan_shows_the_even_split_too() -> None:
    without = samples.subject(samples.PLAN)
    given = samples.subject(samples.PLAN, samples.PROBE)
    assert [step.title for step in steps_of(without)] == ["Chosen split, predicted"]
    assert "give the probe's file too" in drawn(without, "step").text
    even, chosen = steps_of(given)
    assert even.title == "Even split, predicted"
    slowest = max(part.compute_s for part in even.parts)
    assert slowest + even.sync_s == pytest.approx(even.step_time_s, rel=1e-3)
    assert even.throughput < chosen.throughput
    assert drawn(given, "curves")


def test_a_slow_batch_is_drawn_with_its_own_time(tmp_path: Path) -> None:
    """The planner's curve has the time of the larger batch that is faster."""
    times_s = {32: 0.04, 64: 0.1, 96: 0.08}
    rows = [f"{name},{b},{s}\n" for name in "ab" for b, s in times_s.items()]
    path = tmp_path / "times.csv"
    path.write_text("device,batch,seconds\n" + "".join(rows))
    times = read_times(path)
    request = PlanRequest(global_batch=128, accumulate=1)
    made = plan_of_times(times, times.probe.devices, request)
    given = ReportSubject("slow.json", made, times.probe.probes)
    even, chosen = steps_of(given)
    assert (even.batches, chosen.batches) == ((64, 64), (96, 32))
    assert [part.compute_s for part in even.parts] == pytest.approx([0.1, 0.1])
    model = figure_of(drawn(given, "curves")).axes[0].lines[0]
    at, rates = np.asarray(model.get_data(), dtype=float)
    assert np.interp(64, at, rates) == pytest.approx(64 / 0.1, rel=0.01)


def test_a_plan_from_a_table_asks_for_no_probe_and_no_run() -> None:
    times = read_times(ROOT / "configs" / "step-times.csv")
    made = plan_of_times(times, times.probe.devices, PlanRequest())
    charts = charts_of(ReportSubject("table.json", made, (None, None)))
    assert [chart.id for chart in charts.drawn] == ["step"]
    texts = " ".join([charts.drawn[0].text, *charts.missing.values()])
    assert "file too" not in texts
    assert "use `gpubalance run`" not in texts
    assert "from a table of step times" in texts


@cases("width", WIDE, NARROW)
def test_each_svg_is_whole_and_its_text_is_text(
    subjects: tuple[ReportSubject, ...], html: str, width: int
) -> None:
    kind = "wide" if width == WIDE else "narrow"
    svgs = re.findall(rf'(?s)<div class="{kind}">(<svg .*?</svg>)</div>', html)
    shown = [one for subject in subjects for one in charts_of(subject).drawn]
    assert len(svgs) == len(shown)
    for svg, chart in zip(svgs, shown, strict=True):
        root = ET.fromstring(svg)  # noqa: S314  (our own)
        assert (root.get("role"), root.get("width")) == ("img", "100%")
        assert root.get("viewBox", "").startswith(f"0 0 {width} ")
        assert (root[0].tag, root[0].text) == ("title", chart.title)
        ids = {element.get("id") for element in root.iter()}
        assert root.get("aria-labelledby") in ids
        assert set(re.findall(r"url\(#([^)]+)\)", svg)) <= ids
        text = [element.text for element in root.iter("text")]
        assert len(text) > 4
        unit = r", (ms|s|GiB|samples/s|samples)$|^trial$"
        assert any(re.search(unit, label or "") for label in text)
        no_page_changes = re.findall(r"#[0-9a-fA-F]{6}\b", svg)
        assert not no_page_changes


def test_a_chart_is_drawn_the_same_each_time() -> None:
    """A chart is drawn the same each time and leaves matplotlib as it was."""
    import matplotlib

    matplotlib.rcParams["font.size"] = 33.0
    log = logging.getLogger("matplotlib")
    log.setLevel(logging.INFO)
    try:
        chart = drawn(samples.subject(samples.RUN), "memory")
        one, other = (chart.svg("a", WIDE) for _ in range(2))
        assert one == other
        assert chart.png(WIDE).startswith(b"\x89PNG")
        assert "33px" not in one
        assert matplotlib.rcParams["font.size"] == 33.0
        assert matplotlib.rcParams["svg.fonttype"] == "path"
        assert log.level == logging.INFO
    finally:
        log.setLevel(logging.NOTSET)
        matplotlib.rcdefaults()


def test_memory_is_shown_against_what_may_be_taken() -> None:
    """That is what a probe says of the allocator, else all of the device's memory."""
    subject = samples.subject(samples.BALANCE, samples.PROBE)
    for limit, told in ((1 << 40, "1.00 TiB"), (None, "GiB")):
        probes = []
        for probe in map(known, subject.probes):
            probes.append(inside(probe, "batch_limit", memory_bytes=limit))
        chart = drawn(replace(subject, probes=tuple(probes)), "memory")
        texts = [text.get_text() for text in figure_of(chart).axes[0].texts]
        of_limits = [text for text in texts if " of " in text]
        assert len(of_limits) == len(probes)
        assert all(f"{told}, " in text for text in of_limits)


# Machado, Oliveira and Fernandes, IEEE Transactions on Visualization and Computer Graphics 15
# (2009), severity 1.
_SEEN = {
    "protanopia": (
        "0.152286 1.052583 -0.204868  0.114503 0.786281 0.099216  "
        "-0.003882 -0.048116 1.051998"
    ),
    "deuteranopia": (
        "0.367322 0.860646 -0.227968  0.280085 0.672501 0.047413  "
        "-0.01182 0.04294 0.968881"
    ),
    "tritanopia": (
        "1.255528 -0.076749 -0.178779  -0.078411 0.930809 0.147602  "
        "0.004733 0.691367 0.3039"
    ),
    "all": "1 0 0  0 1 0  0 0 1",
}
_XYZ = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)


def linear(value: str) -> np.ndarray:
    rgb = np.array(to_rgb(value))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(value: str, seen: str) -> np.ndarray:
    of_eye = np.array(_SEEN[seen].split(), dtype=float).reshape(3, 3)
    rgb = np.clip(of_eye @ linear(value), 0, 1)
    xyz = _XYZ @ rgb / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    light = sorted(float(_XYZ[1] @ linear(value)) + 0.05 for value in (one, other))
    return light[1] / light[0]


def palettes() -> list[dict[str, str]]:
    """The page's colours by name, light and dark."""
    path = ROOT / "gpubalance" / "render" / "report" / "page.css"
    css = path.read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"(--[a-z]+): (#[0-9a-f]{6});", block))
        for block in css.split("@media screen")[:2]
    )
    return [light, light | dark]


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
@pytest.mark.parametrize("seen", _SEEN)
def test_colour_blind_readers_tell_parts_and_devices_apart(
    palette: dict[str, str], seen: str
) -> None:
    named = {found: palette[name] for found, name in VARIABLES.items()}
    devices = [look(i)["color"] for i in range(4)]
    together = [*combinations((COMPUTE, WAIT, SYNC), 2), *combinations(devices, 2)]
    for one, other in together:
        assert np.linalg.norm(lab(named[one], seen) - lab(named[other], seen)) > 10
    looks = {tuple(look(i).values()) for i in range(56)}
    assert len(looks) == 56
    # And without any colour
    assert len({tuple(look(i).values())[1:] for i in range(8)}) == 8


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_text_and_marks_stand_out_from_the_page(palette: dict[str, str]) -> None:
    for name, minimum in (("--ink", 7), ("--muted", 4.5), ("--link", 4.5)):
        assert contrast(palette[name], palette["--paper"]) >= minimum
        assert contrast(palette[name], palette["--raised"]) >= minimum
    for i in range(4):  # of lines and markers; bars of lighter colours have hatches
        assert contrast(palette[VARIABLES[look(i)["color"]]], palette["--paper"]) >= 3
