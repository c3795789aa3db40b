"""A run's line of a step is an equation that holds."""

from __future__ import annotations

import re

import pytest

from gpubalance.numbers.units import format_seconds
from gpubalance.render.step import step_text
from gpubalance.settings.device import DeviceProfile, JointProfile
from tests.jobs.drawn import drawn_run
from tests.jobs.probes import devices_of
from tests.support.altered import altered


@pytest.mark.parametrize("slower_s", [0.0, 0.004])
def test_steps_that_were_timed_may_be_slower_than_the_others(slower_s: float) -> None:
    profile = DeviceProfile(name="A", alpha_s=0.0, beta_s=0.001)
    run = drawn_run(devices_of(profile, profile), JointProfile(), (100, 90), seed=1)
    replicas = tuple(
        altered(replica, compute_s=replica.compute_s + slower_s)
        for replica in run.replicas
    )
    slower = altered(run, replicas=replicas, excess_s=slower_s, sync_s=0.0)
    text = step_text(slower, replicas).partition("; imbalance")[0]
    step, *parts = (float(number) for number in re.findall(r"([\d.]+) ms", text))
    less = parts.pop() if slower_s else 0.0
    assert step == pytest.approx(sum(parts) - less, rel=0.01)
    assert text.endswith(
        f" − {format_seconds(slower_s)} (steps that were timed were slower)"
    ) == bool(slower_s)
