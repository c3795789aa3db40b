"""How long a balance says it will take, against the time that the stand-in's steps count."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.balance.balance import balance
from gpubalance.jobs.balance.estimate import estimate
from gpubalance.jobs.events import Event, PhaseBegun
from gpubalance.jobs.run import run
from gpubalance.settings.requests import BalanceRequest, Measuring, RunRequest
from gpubalance.settings.shares import Shares
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


class Taken:
    """Has the stand-in note what it takes, and what its steps do not count."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = folder / "taken.txt"
        self._path.touch()
        script = _SCRIPT.format(path=str(self._path), worker_s=_WORKER_S, batch_s=_NEW_BATCH_S)
        for key, value in engine(folder, script).items():
            monkeypatch.setenv(key, value)

    @property
    def seconds(self) -> float:
        return sum(map(float, self._path.read_text().split()))


@pytest.mark.parametrize("name", ["quick-pair", "gtx1080ti-gtx1080", "slow-second"])
def test_a_balance_takes_as_long_as_it_says_at_its_start_and_as_each_phase_begins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Taken(tmp_path, monkeypatch)
    devices, joint = simulated_devices(str(CONFIGS / f"{name}.toml"))
    measuring = Measuring(windows=2, duration_s=None)
    request = BalanceRequest(devices=devices, settings=SMALL, joint=joint, measuring=measuring)
    begun: list[tuple[PhaseBegun, float]] = []

    def watch(event: Event) -> None:
        if isinstance(event, PhaseBegun):
            begun.append((event, taken.seconds))

    expected = estimate(request)
    balance(request, None, watch)
    assert expected.seconds == pytest.approx(taken.seconds, rel=0.3)
    assert [phase.name for phase in expected.phases] == [phase.name for phase, _ in begun]
    assert [(phase.number, phase.of) for phase, _ in begun] == [(number, 4) for number in (1, 2, 3, 4)]
    for phase, before_s in begun:
        assert phase.left_s == pytest.approx(taken.seconds - before_s, rel=0.3)


@pytest.mark.parametrize(
    ("name", "batches"),
    [("gtx1080ti-gtx1080", (820, 568)), ("quick-pair", (24, 16)), ("quick-pair", (64, 64)), ("quick-pair", (168, 112))],
    ids=["even in micro-batches", "even fits", "even itself", "even in micro-batches, quick"],
)
def test_a_run_takes_as_long_as_it_says_at_its_start(
    name: str, batches: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Taken(tmp_path, monkeypatch)
    devices, joint = simulated_devices(str(CONFIGS / f"{name}.toml"))
    request = RunRequest(devices=devices, split=Shares(batches), settings=SMALL, joint=joint)
    begun: list[PhaseBegun] = []
    run(request, None, lambda event: begun.append(event) if isinstance(event, PhaseBegun) else None)
    (only,) = begun
    assert only.left_s == pytest.approx(taken.seconds, rel=0.1)
