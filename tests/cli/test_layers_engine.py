"""`gpubalance layers` with real workers and the real engine.

Two branches of a model are on two devices.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.saved import save
from gpubalance.results.layers import Layers
from gpubalance.settings.code import code_key
from tests.cli.program import QUICK_PAIR, ROOT, result_of
from tests.cli.test_layers import parts_s, profile
from tests.jobs.probes import holding_nothing, probe_of
from tests.support.altered import altered

BRANCHES = f"{ROOT / 'tests' / 'support' / 'two_branches.py'}:net"
DEVICE = 'alpha_s = 0.05\nbeta_s = 0.001\nmemory = "1 GiB"\n'
DEVICE += 'base_memory = "1.2 GiB"\nmemory_per_sample = "1 MiB"'


@pytest.mark.usefixtures("forked")
def test_two_branches_are_on_two_devices(tmp_path: Path) -> None:
    """With one micro-batch a step no pipeline hides anything; each branch is half of the step."""
    pair = profile(tmp_path, DEVICE, DEVICE, joint="link_bytes_per_s = 10e9")
    _known_to_hold_nothing(pair)
    short = "--micro-batch 8 --micro-batches 1 --rounds 1 --windows 1 --duration 0.5"
    asked = f"layers --simulate {pair} --model {BRANCHES} {short} --round-duration 0.1"
    result = result_of(Layers, asked)
    owner = {}
    for stage in result.stages:
        for first_block, last in stage.segments:
            for block in result.blocks[first_block : last + 1]:
                owner[block.name] = stage.device
    of_a = {device for name, device in owner.items() if name.startswith("a")}
    of_b = {device for name, device in owner.items() if name.startswith("b")}
    assert sorted([*of_a, *of_b]) == [0, 1]
    # The merge is a segment of its own.
    assert any(len(stage.segments) > 1 for stage in result.stages)
    for stage in result.stages:
        assert parts_s(stage) == pytest.approx(result.step_time_s.median, rel=0.01)
        predicted = stage.memory_predicted_bytes
        assert stage.memory_peak_bytes == pytest.approx(predicted, rel=0.01)
    # One block after the other would take longer on the same devices.
    # They count as slow as they were on a busy machine.
    in_turn = [block.compute_s[owner[block.name]] or 0.0 for block in result.blocks]
    assert result.predicted.step_time_s < 0.9 * sum(in_turn)


def _known_to_hold_nothing(pair: str) -> None:
    """Keeps a probe of both devices, so that the command makes none."""
    probe = holding_nothing(probe_of(simulated_devices(QUICK_PAIR)[0]))
    none = probe.probes[1]
    changes = {
        "settings": altered(probe.settings, model=BRANCHES),
        "code": code_key(BRANCHES, None),
        "devices": simulated_devices(pair)[0],
        "probes": (altered(none, device=0), none),
    }
    save(altered(probe, **changes))
