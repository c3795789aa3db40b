"""A part of `scripts/bench kills`: one of each command, and thirty without TensorFlow, which takes most of the time.

A soak is `campaign`. Other moments have tests of their own in tests/cli.
"""

from __future__ import annotations

import re
import signal
from random import Random

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.results.common import Model
from gpubalance.stages.probe.saved import save
from tests.bench import kills, soak
from tests.bench.__main__ import read
from tests.bench.aftermath import Answers
from tests.bench.killed import COMMANDS, NET, PROFILE, WEIGHTS, Kill
from tests.bench.kills import Undisturbed, disturb
from tests.stages.probes import probe_of


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The moments are parts of what a run took here, other tests beside it; the probe is the profile's."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "fast.toml").write_text(PROFILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        probe = probe_of(simulated_devices(str(folder / "fast.toml"))[0])
        settings, model = probe.settings.model_copy(update={"model": NET}), Model(**WEIGHTS)
        save(probe.model_copy(update={"settings": settings, "model": model}))
    run_s = kills.by_itself(folder, "run", {}).elapsed_s
    return Undisturbed(dict.fromkeys(COMMANDS, run_s), Answers(((32, 40),), (32, 24)), folder / "state")


@pytest.mark.parametrize(
    "kill",
    [
        Kill("probe", "parent", signal.SIGKILL, 0.7),
        Kill("balance", "parent", signal.SIGKILL, 0.9),
        Kill("run", "child", signal.SIGINT, 0.8),
    ],
    ids=str,
)
def test_a_kill_loses_nothing_and_leaves_nothing(kill: Kill, known: Undisturbed) -> None:
    seen = disturb(kill, known)
    assert not seen.faults


def test_thirty_kills_lose_nothing_and_leave_nothing() -> None:
    """Without TensorFlow in the children: the program, its processes, signals, journals and files are real."""
    lines = list(kills.without_tensorflow(30))
    assert not [line for line in lines if "FAILED" in line], lines
    (killed,) = re.findall(r"30 runs, (\d+) killed", lines[-1])
    assert int(killed) > 15  # the others were over before


@pytest.mark.campaign
def test_a_parent_of_many_children_stays_as_it_is() -> None:
    lines = list(soak.main(30))
    assert not [line for line in lines if "FAILED" in line], lines


def test_the_kills_are_the_same_for_a_seed_and_cover_every_kind() -> None:
    first, again = (list(kills.kills(18, Random(5))) for _ in range(2))
    assert first == again
    assert len({(kill.command, kill.victim, kill.number) for kill in first}) == 18


def test_a_soak_tells_what_grew() -> None:
    warm = soak.Level(50 << 20, 9, 1, 52)
    assert soak.faults(warm, warm) == []
    assert soak.faults(warm, warm._replace(memory_bytes=80 << 20)) == ["memory grew by 30 MiB"]
    assert soak.faults(warm, warm._replace(handles=10, threads=2)) == [
        "10 handles, and 9 before",
        "2 threads, and 1 before",
    ]


def test_a_bench_takes_a_number_and_a_seed() -> None:
    assert read(["kills", "30", "7", "fuzz", "startup"]) == [("kills", [30, 7]), ("fuzz", []), ("startup", [])]
    for words in (["startup", "3"], ["3"], ["kills", "1", "2", "3"], ["no-such"]):
        with pytest.raises(SystemExit, match="there is no bench"):
            read(words)
