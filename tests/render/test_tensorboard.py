"""Events as TensorBoard's scalars and hyperparameters: run, tag, step, wall time and value."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gpubalance.render.tensorboard import Summaries, Summary
from gpubalance.results.timing import Moment, Telemetry
from gpubalance.settings.settings import Settings
from tests.render.measurements import PAIR, measurement, step_time
from tests.support.altered import altered

SETTINGS = Settings(model="small", precision="tf32")
NOW = 1000.0


def scalars(found: list[Summary], tag: str) -> list[tuple[int, float, float]]:
    events = [(step, wall_s, of.value[0]) for _, wall_s, step, of in found]
    return [
        (step, wall_s, one.simple_value)
        for step, wall_s, one in events
        if one.tag == tag
    ]


def runs(found: list[Summary]) -> list[str]:
    return list(dict.fromkeys(item[0] for item in found if item[0]))


def test_how_long_a_step_waits_for_data_is_told_where_the_host_has_it() -> None:
    on_host = Settings(model="small", input="host")
    for settings, tells in ((SETTINGS, False), (on_host, True)):
        measured = measurement((6, 4), step_time(0.5))
        found = Summaries(settings).window("", PAIR, measured, NOW)
        assert bool(scalars(found, "gpubalance/input_wait_s")) == tells


def test_windows_of_a_split_go_on_and_the_even_split_is_a_run_of_its_own() -> None:
    told = Summaries(SETTINGS)
    first = told.window("", PAIR, measurement((6, 4), step_time(0.5, 0.25)), NOW)
    even = told.window("even", PAIR, measurement((5, 5), step_time(1.0)), NOW + 1)
    again = told.window("", PAIR, measurement((6, 4), step_time(0.25)), NOW + 2)
    assert (runs(first), runs(even), runs(again)) == (["split"], ["even"], ["split"])
    assert [step for step, _, _ in scalars(again, "gpubalance/samples_per_s")] == [12]
    # The figure beside the hyperparameters is the median of all its samples, as the result's.
    assert scalars(again, "gpubalance/median/samples_per_s") == [(12, NOW + 2, 40.0)]
    rows = []
    for found in (first, again):
        tags = [told.value[0].tag for *_, told in found]
        rows.append(tags.count("_hparams_/session_start_info"))
    assert rows == [1, 0]
    # Another split that is proven is another run, and so are other micro-batches.
    other = []
    for batches in ((8, 2), (6, 4)):
        of = measurement(batches, step_time(0.5))
        other.append(runs(told.window("", PAIR, of, NOW + 3)))
    of = measurement((6, 4), step_time(0.5), micro_batches=(3, 4))
    other.append(runs(told.window("", PAIR, of, NOW + 3)))
    assert other == [["split-2"], ["split"], ["split-3"]]
    ends = [(run, NOW + 4) for run in ("split", "even", "split-2", "split-3")]
    assert [one[:2] for one in told.done(NOW + 4)] == ends


def test_the_table_has_a_column_of_each_figure_and_each_hyperparameter() -> None:
    from tensorboard.plugins.hparams import metadata

    found = Summaries(SETTINGS).window("", PAIR, measurement((6, 4), step_time(0.5)), 1)
    values = {told.value[0].tag: told.value[0] for *_, told in found}
    content = values[metadata.EXPERIMENT_TAG].metadata.plugin_data.content
    table = metadata.parse_experiment_plugin_data(content)
    figures = [one.name.tag for one in table.metric_infos]
    assert len(figures) == 4
    assert {*figures} <= {*values}
    assert "samples/s" in [one.display_name for one in table.metric_infos]
    differ = {one.name: one.differs for one in table.hparam_infos}
    assert (differ["batch/GPU:0"], differ["model"]) == (True, False)


def test_readings_of_a_gpu_stand_at_the_steps_it_had_done() -> None:
    seen = ((-3.0, 40), (0.2, 50), (1.6, 60), (3.9, 70))
    moments = tuple(Moment(at_s=at_s, temperature_c=c) for at_s, c in seen)
    figures: Any = {"readings": 4, "temperature_c": 70, "power_w": 200.0}
    telemetry = Telemetry(duration_s=5.0, course=moments, **figures)
    # Samples of four steps that ended at 2 and 4 s, after a stamped second of the window.
    times = step_time(0.25, 0.5, at_s=(2.0, 4.0))
    told = Summaries(SETTINGS)
    told.window("", PAIR, measurement((6, 4), times), NOW - 10)
    found = told.window("", PAIR, measurement((6, 4), times, telemetry), NOW)
    # One is of another window, one came before the first whole step.
    assert scalars(found, "gpubalance/temperature_c/GPU:0") == [
        (9, NOW - 3.8, 50.0),
        (10, NOW - 2.4, 60.0),
        (15, pytest.approx(NOW - 0.1), 70.0),
    ]
    assert scalars(found, "gpubalance/temperature_c/GPU:1") == []
    # None of these moments told the power.
    # So not even its mean stands beside them as if it were one of them.
    assert scalars(found, "gpubalance/power_w/GPU:0") == []
    # Without readings over time its summary stands at the end.
    whole = measurement((6, 4), times, altered(telemetry, course=()))
    found = Summaries(SETTINGS).window("", PAIR, whole, NOW)
    assert scalars(found, "gpubalance/temperature_c/GPU:0") == [(8, NOW, 70.0)]
    assert scalars(found, "gpubalance/power_w/GPU:0") == [(8, NOW, 200.0)]
    assert scalars(found, "gpubalance/sm_clock_mhz/GPU:0") == []


def test_steps_of_a_tag_rise_always() -> None:
    """TensorBoard drops what came before a step that is not larger."""
    moments = []
    for n in range(60):
        moments.append(Moment(at_s=0.1 * n, temperature_c=50 + n, power_w=100.0))
    telemetry = Telemetry(readings=60, duration_s=6.0, course=tuple(moments))
    told = Summaries(SETTINGS)
    found = list[Summary]()
    for window in range(3):
        times = step_time(0.25, 0.5, 0.5, at_s=(1.5, 3.5, 5.5))
        of = measurement((6, 4), times, telemetry, memory=1)
        found += told.window("", PAIR, of, NOW + 10 * window)
    by_tag: dict[str, list[int]] = {}
    for item in found:
        by_tag.setdefault(item[3].value[0].tag, []).append(item[2])
    assert len(by_tag) > 15
    assert all(a < b for steps in by_tag.values() for a, b in pairwise(steps))
