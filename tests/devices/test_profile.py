"""Device profiles: each that ships loads, and each thing wrong with one is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.devices.profile import load_profile, shipped_profiles, simulated_devices
from gpubalance.errors import BadInput, UsageError
from tests.support.cases import cases
from tests.support.known import known

CONFIGS = Path(__file__).parents[2] / "configs"
NAMED = '[[device]]\nname = "a"\n'
DEVICE = f"{NAMED}alpha_s = 0.1\nbeta_s = 0.001\n"
CURVE = f"{NAMED}curve = "


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem
)
def test_each_profile_that_ships_loads(path: Path) -> None:
    profile = load_profile(path)
    assert len(profile.device) >= 2
    assert all(device.memory for device in profile.device)


def test_the_published_pair_has_the_published_numbers() -> None:
    (ti, plain), joint = simulated_devices(str(CONFIGS / "gtx1080ti-gtx1080.toml"))
    fast = known(ti.profile)
    slow = known(plain.profile)
    solo = {64: 684, 256: 1128, 512: 1260, 1024: 1345}
    for batch, throughput in solo.items():
        rate = batch / (fast.alpha_s + fast.beta_s * batch)
        assert rate == pytest.approx(throughput, rel=0.0025)
    assert 512 / (slow.alpha_s + slow.beta_s * 512) == pytest.approx(875, rel=0.04)
    memory = known(ti.memory_bytes)
    assert fast.memory_at(1024) <= memory < fast.memory_at(1024, joint.extra_memory)


@cases("source", "3", 3)
def test_a_number_makes_plain_cpu_devices(source: int | str) -> None:
    devices, joint = simulated_devices(source)
    assert [d.label for d in devices] == ["CPU:0", "CPU:1", "CPU:2"]
    assert all(d.profile is None and d.memory_bytes is None for d in devices)
    assert (joint.sync_s, joint.extra_memory) == (0, 0)


def test_a_number_makes_so_many_plain_devices_on_each_host() -> None:
    devices, _ = simulated_devices(2, ["alpha", "beta"])
    labels = ["alpha:0", "alpha:1", "beta:0", "beta:1"]
    assert [device.label for device in devices] == labels
    assert len({device.uuid for device in devices}) == 4
    assert all(device.profile is None for device in devices)


@cases(
    "text, place",
    ("", "device"),
    (CURVE + "[[16, 0.1], [8, 0.2]]\n", "device 1: curve: needs two or more points"),
    (CURVE + "[[8, 0.0], [16, 0.2]]\n", "device 1: curve: its seconds must be above 0"),
    (CURVE + "[[0, 0.1], [16, 0.2]]\n", "device 1: curve.0.0"),
    (CURVE + "[[8], [16]]\n", "device 1: curve.0"),
    (CURVE + "[[true, 0.1], [16, 0.2]]\n", "device 1: curve.0.0"),
    (CURVE + "[[8, true], [16, 2]]\n", "device 1: curve.0.1"),
    (DEVICE + "memory = '8 GB'\n", "device 1: memory"),
    (DEVICE + "drift = [[20.0]]\n", "device 1: drift"),
    (DEVICE + "drift = 3\n", "device 1: drift"),
    (DEVICE.replace("0.1", "nan"), "device 1: alpha_s"),
    (DEVICE.replace("0.1", "-1"), "device 1: alpha_s"),
    (DEVICE.replace("device", "devices"), "toml: devices: unknown key"),
    ("device = 3\n", "device"),
    ("[[device]\n", "is not valid TOML"),
    ("\udcff", "is not valid TOML"),
    ("x = " + "[" * 100_000, "is not valid TOML"),
    ids=lambda text: text.strip().splitlines()[-1][:30] if text.strip() else "empty",
)
def test_what_is_wrong_has_its_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "profile.toml"
    # A byte order mark does no harm
    path.write_bytes(text.encode("utf-8-sig", "surrogateescape"))
    with pytest.raises(BadInput) as caught:
        load_profile(path)
    assert str(path) in caught.value.message
    assert place in caught.value.message


WRONG_AS_A_WHOLE = """
[[device]]
nmae = "a"
alpha_s = 0.1
drift = [[3.0, 1.0], [2.0, 2.0]]

[[device]]
name = "b"
noise = -1
curve = [[8, 0.1]]
host = "alpha"

[[device]]
name = "c"
alhpa_s = 0.1
memory = 0

[[device]]
name = "d"
beta_s = 0.1
curve = [[8, 0.1], [16, 0.2]]

[joint]
contention = 0
sync = 1
"""


def test_faults_of_devices_and_of_all_are_told_with_those_of_keys(
    tmp_path: Path,
) -> None:
    """And none that only follows from another: device 3 has an alpha_s, under another name."""
    path = tmp_path / "profile.toml"
    path.write_text(WRONG_AS_A_WHOLE)
    with pytest.raises(BadInput) as caught:
        load_profile(path)
    assert caught.value.message.splitlines() == [
        f"{path} has 11 errors:",
        "    device 1: drift: its points must be in order of time",
        "    device 1: nmae: unknown key, did you mean name?",
        "    device 1: alpha_s (seconds per step) and beta_s (seconds per sample) are needed, or a curve",
        "    device 2: curve: needs two or more points, of rising batches",
        "    device 2: noise -1 should be greater than or equal to 0",
        "    device 3: memory 0 should be greater than 0",
        "    device 3: alhpa_s: unknown key, did you mean alpha_s?",
        "    device 4: curve replaces alpha_s and beta_s: give one or the other",
        "    joint.contention 0 should be greater than or equal to 1",
        "    joint.sync: unknown key, did you mean sync_s?",
        "    device 1 has no host, unlike the other devices",
    ]


def test_a_profile_that_comes_with_it_is_found_by_name_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "gtx1080ti-gtx1080"
    assert simulated_devices(name) == simulated_devices(shipped_profiles()[name])
    mine = '[[device]]\nname = "Mine"\nalpha_s = 0.1\nbeta_s = 0.1\n'
    Path(name).write_text(mine)  # a file of that name is meant
    (device,), _ = simulated_devices(name)
    assert device.name == "Mine"


def test_a_name_that_is_no_profile_is_told_those_that_are() -> None:
    with pytest.raises(UsageError, match="gtx1080: No such file") as caught:
        simulated_devices("gtx1080")
    assert "four-unlike, gtx1070-m40-gtx750, " in caught.value.remedy
