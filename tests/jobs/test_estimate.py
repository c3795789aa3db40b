"""How long a balance says it will take, against the time that the stand-in's steps count."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.balance.balance import balance
from gpubalance.jobs.balance.estimate import estimate
from gpubalance.jobs.events import Event, PhaseBegun
from gpubalance.settings.requests import BalanceRequest, Measuring
from tests.jobs.probes import SMALL
from tests.stand_in import engine

CONFIGS = Path(__file__).parents[2] / "configs"
# What a step does not count, measured on an idle machine with two cores: a worker that loads TensorFlow and builds the
# model while another one measures, or when all wait for it; and a batch that a worker has not trained with yet.
_WORKER_S, _NEW_BATCH_S = 2.5, 0.3
_SCRIPT = """
seen = set()

def note(seconds):
    with open({path!r}, "a") as file:
        file.write(f"{{seconds}}\\n")

def built(devices):
    note({worker_s})

def step(devices, batches, number):
    if batches not in seen:
        seen.add(batches)
        note({batch_s})

def took(seconds):
    note(seconds)
"""


@pytest.mark.parametrize("name", ["quick-pair", "gtx1080ti-gtx1080", "slow-second"])
def test_a_balance_takes_as_long_as_it_says_at_its_start_and_as_each_phase_begins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "taken.txt"
    path.touch()
    script = _SCRIPT.format(path=str(path), worker_s=_WORKER_S, batch_s=_NEW_BATCH_S)
    for key, value in engine(tmp_path, script).items():
        monkeypatch.setenv(key, value)
    devices, joint = simulated_devices(str(CONFIGS / f"{name}.toml"))
    measuring = Measuring(windows=2, duration_s=None)
    request = BalanceRequest(devices=devices, settings=SMALL, joint=joint, measuring=measuring)
    begun: list[tuple[PhaseBegun, float]] = []

    def taken_s() -> float:
        return sum(map(float, path.read_text().split()))

    def watch(event: Event) -> None:
        if isinstance(event, PhaseBegun):
            begun.append((event, taken_s()))

    expected = estimate(request)
    balance(request, None, watch)
    assert expected.seconds == pytest.approx(taken_s(), rel=0.3)
    assert [phase.name for phase in expected.phases] == [phase.name for phase, _ in begun]
    assert [(phase.number, phase.of) for phase, _ in begun] == [(number, 4) for number in (1, 2, 3, 4)]
    for phase, before_s in begun:
        assert phase.left_s == pytest.approx(taken_s() - before_s, rel=0.3)
