"""A profile that this machine can't follow, and --time-scale, which slows it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import gpubalance
from gpubalance.render.plan import plan_headline
from gpubalance.results.plan import Plan
from tests.cli.program import QUICK_PAIR, SHORT, TINY_PAIR, here, one_line, result_of
from tests.support.cases import cases

# Steps take 2.6 times as long as by the profile, at its first size or at a later one
SLOW = """
def step(devices, batches, number):
    if batches[0] >= {minimum}:
        return 2.6 * (devices[0].profile.compute_s(batches[0]))

def late_part():
    return 1.0
"""
SCALED = (*TINY_PAIR, "--time-scale", "8")


@cases("minimum, tried", (1, 0), (32, 2))
def test_a_machine_slower_than_the_profile_is_told_at_once(
    minimum: int, tried: int, engine_that: Callable[[str], None]
) -> None:
    """A machine that computes more slowly than the profile is told at once.

    Nothing larger is tried, and no other device.
    """
    engine_that(SLOW.format(minimum=minimum))
    done = here("balance", *TINY_PAIR, *SHORT, code=2)
    assert len(re.findall("(?m)^GPU:. batch ", done.stderr)) == tried
    _, _, error = done.stderr.partition("error: ")
    slower = r"this machine computes .* more slowly than the profile's device: on GPU:0 a step of \d+ "
    takes = r"samples takes .*, 2\.6 times as long\n  → use --time-scale 8: it slows"
    assert re.match(slower + takes, error), error
    assert "smaller inputs" in error
    assert "--resume" not in error


@cases(
    "command, which",
    ("run", "a step of the split 24/16"),
    ("independent", "on GPU:0 a step of 24 samples"),
)
def test_a_run_slower_than_the_profile_stops_at_its_first_window(
    command: str, which: str, engine_that: Callable[[str], None]
) -> None:
    """As a probe does at its first batch: no figure of it is shown."""
    engine_that(SLOW.format(minimum=1))
    split = ("--batches", "24", "16", "--windows", "3", "--duration", "0.1")
    done = here(command, *TINY_PAIR, *split, code=2)
    assert len(re.findall("window 1 of 3", done.stderr)) <= 2
    assert "window 2" not in done.stderr
    _, _, error = done.stderr.partition("error: ")
    assert f"more slowly than the profile's device: {which} takes " in error
    assert re.search(r", \d\.\d+ times as long\n  → use --time-scale \d: it", error)
    assert "--resume" not in error
    assert not done.stdout


@pytest.mark.usefixtures("stand_in")
def test_a_time_scale_slows_all_of_the_profile_and_is_kept_with_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = here("balance", *TINY_PAIR, *SHORT, "--json", code=0)
    done = here("balance", *SCALED, *SHORT, "--json", "-o", "plan.json", code=0)
    plan, slow = (Plan.model_validate_json(one.stdout) for one in (usual, done))
    assert (plan.settings.time_scale, slow.settings.time_scale) == (1.0, 8.0)
    slow_s = 8 * plan.predicted.step_time_s
    assert slow.predicted.step_time_s == pytest.approx(slow_s, rel=0.05)
    for device, slowed in zip(plan.devices, slow.devices, strict=True):
        assert device.profile is not None
        assert slowed.profile == device.profile.slowed(8)
    # A probe of the profile as it is does not count for the slow one, or the other way round
    planned = result_of(Plan, "plan", *SCALED)
    assert planned.settings == slow.settings
    shown = here("balance", *SCALED, *SHORT, code=0)
    text = one_line(shown.stdout)
    assert "--time-scale 8 " in text
    at_its_speed = ", at 1/8 of the profile's speed (--time-scale 8)"
    assert f"net{at_its_speed} " in text
    assert plan_headline(slow).endswith(at_its_speed)
    assert "profile's speed" not in plan_headline(plan)
    assert ", time_scale=8.0" in shown.stdout  # of the line for a script
    # The plan knows it
    run = here("run", *TINY_PAIR, "--plan", "plan.json", *SHORT, "--json", code=0)
    assert json.loads(run.stdout)["settings"]["time_scale"] == 8.0
    other = ("--time-scale", "8.0000001", "--plan", "plan.json")
    refused = here("run", *TINY_PAIR, *other, code=7).stderr
    assert "measured with --time-scale 8, not with --time-scale 8.0000001\n" in refused
    split = gpubalance.load_plan("plan.json", simulate=QUICK_PAIR)
    assert split.batches == slow.split.without_idle.batches


@pytest.mark.usefixtures("stand_in")
@cases(
    "command",
    ("devices",),
    ("probe", "--max-batch", "16", "--duration", "0.1"),
    ("run", *SHORT),
    ("check", "--model", "small"),
    ("independent", "--duration", "0.1"),
    ("doctor",),
)
def test_all_that_takes_a_profile_takes_a_time_scale(command: tuple[str, ...]) -> None:
    if command != ("doctor",):  # which needs TensorFlow
        done = here(*command, "--simulate", QUICK_PAIR, "--time-scale", "2", code=0)
        if command[0] in ("probe", "run", "independent"):  # which have rates
            slowed = ", at 1/2 of the profile's speed (--time-scale 2)"
            assert slowed in one_line(done.stdout)
    refused = here(*command, "--simulate", "2", "--time-scale", "2", code=2).stderr
    assert "--time-scale 2 needs a profile, and CPU:0 has none" in refused
