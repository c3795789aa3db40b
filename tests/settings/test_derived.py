"""What follows from settings: windows, micro-batches, the probe of a balance, texts, shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.errors import BadInput, UsageError
from gpubalance.settings.batch_split import (
    BatchSplit,
    count_text,
    pieces,
    pieces_text,
    proportional_split,
    run_text,
    share_text,
)
from gpubalance.settings.cluster import Cluster, cluster_of, tf_config
from gpubalance.settings.code import code_key
from gpubalance.settings.device import Device, DeviceProfile, JointProfile
from gpubalance.settings.measuring import Measuring, Tracing
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import (
    BalanceRequest,
    LaunchedSplit,
    LayersRequest,
    TrainingProgress,
    launched_split,
    refuse_together,
)
from gpubalance.settings.settings import Settings
from tests.jobs.probes import QUICK, devices_of
from tests.support.altered import altered
from tests.support.cases import cases

PAIR = devices_of(QUICK, QUICK)
SMALL = Settings(model="small")


def gpus(count: int, *, uuid: str = "GPU", host: str | None = None) -> list[Device]:
    card: Any = {"name": "card", "memory_bytes": None, "simulated": False, "host": host}
    return [Device(index=n, uuid=f"{uuid}-{n}", **card) for n in range(count)]


AB = [*gpus(1, host="a"), *gpus(1, host="b")]


@cases("windows, maximum", (1, 2), (2, 4), (3, 5), (4, 7), (5, 9), (6, 10), (30, 50))
def test_five_thirds_as_many_windows_may_follow(windows: int, maximum: int) -> None:
    assert Measuring(windows=windows).max_windows == maximum


def test_a_window_ends_early_only_without_a_duration() -> None:
    assert (Measuring().longest_s, Measuring().within) == (10.0, 0.005)
    asked = Measuring(duration_s=4.0)
    assert (asked.longest_s, asked.within) == (4.0, None)
    assert Measuring().windows == 3


def test_a_trace_of_one_device_has_its_label() -> None:
    tracing = Tracing(folder="f", name="run")
    assert tracing.of(PAIR[1]).name == "run-GPU-1"
    assert tracing.steps == 10


@cases("typed, read", ("off", 1), ("auto", "auto"), ("8", 8), (1024, 1024), (1, 1))
def test_micro_batches_are_read(typed: object, read: object) -> None:
    assert PlanRequest(accumulate=typed).accumulate == read


@cases("typed", "on", "0", 0, 1025, "1025", "123456", -1, 2.5, None)
def test_what_are_no_micro_batches_is_refused(typed: object) -> None:
    with pytest.raises(ValueError, match="auto, off or a number from 1 to 1024"):
        PlanRequest(accumulate=typed)


def test_the_probe_of_a_balance_is_for_what_the_balance_asks() -> None:
    asked = BalanceRequest(
        devices=PAIR,
        settings=altered(SMALL, pack_bytes=7, gradients="bf16"),
        plan=PlanRequest(global_batch=300, batch_multiple=4),
        measuring=Measuring(seed=5, deadline_s=70.0),
        probe_s=2.5,
        each=True,
    )
    probe = asked.probe
    assert (probe.max_batch, probe.batch_multiple, probe.least_samples) == (300, 4, 300)
    assert (probe.duration_s, probe.deadline_s, probe.seed) == (2.5, 70.0, 5)
    assert probe.for_split
    assert probe.each
    assert (probe.settings.pack_bytes, probe.settings.gradients) == (None, "full")
    bounded = PlanRequest(global_batch=300, max_global_batch=500)
    assert altered(asked, plan=bounded).probe.max_batch == 500
    plain = BalanceRequest(devices=PAIR[:1], settings=SMALL).probe
    assert (plain.max_batch, plain.batch_multiple, plain.least_samples) == (None, 8, 0)
    assert not plain.for_split


def test_a_step_of_layers_has_eight_micro_batches_a_device() -> None:
    asked = LayersRequest(devices=PAIR, settings=SMALL, margin_bytes=9 << 20)
    assert asked.in_a_step == 16
    assert altered(asked, micro_batches=3).in_a_step == 3
    uncut = asked.uncut
    assert (uncut.plan.accumulate, uncut.plan.margin_bytes) == ("auto", 9 << 20)
    assert (uncut.round_s, uncut.rounds) == (3.0, 10)


@cases(
    "devices, all_reduce, named, told",
    (gpus(2, uuid="MIG"), "auto", (), "only one MIG slice"),
    (PAIR, "nccl", (), "nccl needs GPUs"),
    (gpus(3), "hierarchical", (), "and there are 3"),
    (gpus(3), "hierarchical", gpus(4), "3 of 4 have samples"),
    (gpus(2), "ring", (), "the devices are on one"),
    (AB, "one-device", (), "the devices are on a, b"),
    (gpus(1, uuid="MIG"), "auto", (), ""),
    (gpus(2), "nccl", (), ""),
    (gpus(4), "hierarchical", (), ""),
    (gpus(2, host="a"), "ring", [*gpus(2, host="a"), *gpus(1, host="b")], ""),
    (AB, "ring", (), ""),
    (AB, "nccl", (), ""),
)
def test_what_devices_cannot_do_together_is_refused(
    devices: list[Device], all_reduce: str, named: list[Device], told: str
) -> None:
    refusal = ""
    try:
        if named:
            refuse_together(devices, all_reduce, named)  # type: ignore[arg-type]
        else:
            settings: Any = {"model": "small", "all_reduce": all_reduce}
            BalanceRequest(devices=tuple(devices), settings=settings)
    except UsageError as error:
        refusal = error.message
    assert bool(refusal) == bool(told)
    assert told in refusal


@given(st.integers(0, 500), st.integers(1, 60))
def test_pieces_make_a_batch_the_smaller_first(batch: int, micro_batch: int) -> None:
    parts = pieces(batch, micro_batch)
    sizes = [size for count, size in parts for _ in range(count)]
    assert sum(sizes) == batch
    assert all(size == micro_batch for size in sizes[1:])
    assert not sizes or 0 < sizes[0] <= micro_batch
    if 0 < micro_batch <= batch:
        split = BatchSplit((batch,), (micro_batch,))
        assert split.counts == (len(sizes),)
        assert split.first_micro_batches == (sizes[0],)
        assert split.smallest == sizes[0]


def test_splits_as_text() -> None:
    shares = ((820, 820), (1640, 820), (1000, 300), (0, 0))
    texts = [pieces_text(*share) for share in shares]
    assert texts == ["820", "2×820", "100+3×300", "0"]
    texts = [share_text(*share) for share in shares]
    assert texts == ["820", "1640 = 2×820", "1000 = 100+3×300", "0"]
    assert count_text(1, 32) == "1 micro-batch of 32"
    assert count_text(16, 32) == "16 micro-batches of 32"
    assert [run_text(0, 8), run_text(8, 8)] == ["0–8", "8"]
    split = BatchSplit((1640, 0, 568), (820, 0, 568))
    assert str(split) == "1640/0/568 in micro-batches 820/0/568"
    assert split.options == "--batches 1640 0 568 --micro-batches 820 0 568"
    assert str(split.without_idle) == "1640/568 in micro-batches 820/568"
    assert BatchSplit((8, 4)).options == "--batches 8 4"


PROPORTIONS = st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any)


@given(st.integers(0, 300), PROPORTIONS, st.integers(0, 5))
def test_shares_are_the_nearest_to_the_proportion(
    samples: int, weights: list[int], minimum: int
) -> None:
    shares = proportional_split(samples, weights, minimum)
    used = [share for share, weight in zip(shares, weights, strict=True) if weight]
    assert sum(used) == sum(shares) == samples
    exact = [samples * weight / sum(weights) for weight in weights]
    if samples >= minimum * len(used):
        assert min(used) >= min(minimum, samples)
    if samples and min(filter(None, exact)) >= minimum:
        pairs = zip(shares, exact, strict=True)
        assert all(abs(share - of) < 1 + 1e-9 for share, of in pairs)


def test_of_equal_remainders_the_first_gets_more() -> None:
    assert proportional_split(5, (1, 1)) == (3, 2)
    assert proportional_split(6, (2, 1, 1)) == (3, 2, 1)
    assert proportional_split(3, (100, 1, 1)) == (1, 1, 1)
    assert proportional_split(2, (100, 1, 1)) == (2, 0, 0)
    assert proportional_split(10, (100, 1), 3) == (7, 3)
    assert proportional_split(5, (100, 1), 3) == (5, 0)
    assert proportional_split(6, (100, 0, 1), 3) == (3, 0, 3)


CURVE = DeviceProfile(name="c", curve=((8, 0.02), (16, 0.03), (64, 0.06)))
FALLING = DeviceProfile(name="c", curve=((8, 0.02), (16, 0.03), (64, 0.01)))


@cases(
    "profile, batch, micro_batch, seconds",
    (QUICK, 10, None, 0.010 + 0.002),
    (QUICK, 10, 4, 3 * 0.010 + 0.002),
    (CURVE, 12, None, 0.025),
    (CURVE, 16, None, 0.03),
    (CURVE, 40, None, 0.045),
    (CURVE, 128, None, 0.10),
    # From the first piece on to the left, 0.01 at none
    (CURVE, 4, None, 0.015),
    (CURVE, 20, 8, 0.015 + 2 * 0.02),
    (FALLING, 128, None, 0.01),
    (FALLING, 40, None, 0.02),
)
def test_a_profiles_compute_by_hand(
    profile: DeviceProfile, batch: int, micro_batch: int | None, seconds: float
) -> None:
    assert profile.compute_s(batch, micro_batch) == pytest.approx(seconds)


def test_no_batch_below_a_curve_takes_negative_time() -> None:
    steep = DeviceProfile(name="c", curve=((8, 0.01), (16, 0.05)))
    assert steep.compute_s(4) == pytest.approx(0.005)
    assert steep.compute_s(1) == pytest.approx(0.00125)


def test_memory_drift_and_sync_by_hand() -> None:
    profile = DeviceProfile(
        name="d",
        alpha_s=0.0,
        beta_s=0.1,
        base_memory=100,
        memory_per_sample=7,
        sync_s=0.02,
        drift=((2.0, 1.5), (5.0, 1.0)),
    )
    assert profile.memory_at(10) == 170
    assert profile.memory_at(10, 5) == 175
    factors = [profile.drift_at(at_s) for at_s in (0.0, 1.99, 2.0, 4.99, 5.0, 99.0)]
    assert factors == [1.0, 1.0, 1.5, 1.5, 1.0, 1.0]
    joint = JointProfile(sync_s=0.01)
    assert joint.among([profile, None]).sync_s == 0.02
    assert joint.among([None]).sync_s == 0.01
    assert JointProfile(sync_s=0.05).among([profile]).sync_s == 0.05
    assert joint.contention == 1.0


def test_how_devices_are_called() -> None:
    (gpu,) = gpus(1)
    (remote,) = gpus(1, host="alpha")
    cpu = altered(gpu, simulated=True)
    simulated = altered(cpu, profile=QUICK)
    with_xla = altered(QUICK, xla_factor=0.5)
    compiled = altered(cpu, profile=with_xla)
    labels = [device.label for device in (gpu, remote, cpu, simulated)]
    assert labels == ["GPU:0", "alpha:0", "CPU:0", "GPU:0"]
    assert [device.called for device in (gpu, remote)] == ["0", "alpha:0"]
    xla = [device.gets_xla for device in (gpu, remote, cpu, simulated, compiled)]
    assert xla == [True, True, False, False, True]
    by_nvml = [device.is_local_gpu for device in (gpu, remote, cpu, simulated)]
    assert by_nvml == [True, False, False, False]


LOST_2 = "steps lost since the beginning: 2; training was in step 2 of epoch 1"
LOST_1200 = "steps lost since the last backup: 1,200; training was in step 1 of epoch 2"


@cases(
    "progress, has_trained, text",
    ({}, False, "training had not begun"),
    ({"epoch": 1, "step": 1, "unsaved": 1}, False, LOST_2.replace("2", "1")),
    ({"epoch": 1, "step": 2, "unsaved": 2}, True, LOST_2),
    ({"epoch": 2, "step": 1, "unsaved": 1200, "backs_up": True}, True, LOST_1200),
)
def test_what_is_lost_of_a_training(
    progress: dict[str, Any], has_trained: bool, text: str
) -> None:
    made = TrainingProgress(**progress)
    assert (made.has_trained, made.lost_text) == (has_trained, text)


def test_a_launched_split_is_of_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    split = BatchSplit((6, 2), (3, 2))
    assert launched_split("today") is None
    for name, value in LaunchedSplit(created="today", split=split).environment.items():
        monkeypatch.setenv(name, value)
    assert launched_split("today") == split
    assert launched_split("yesterday") is None


def test_a_cluster_is_told_and_read_again() -> None:
    cluster = Cluster(addresses=("a:1", "b:65535"), rank=1)
    assert cluster_of(tf_config(cluster)) == cluster
    assert cluster_of({}) is None
    assert cluster_of({"TF_CONFIG": " {} "}) is None
    named = '"cluster": {"chief": ["c:9"], "worker": ["a:1", "b:2"]}'
    with_chief = f'{{{named}, "task": {{"type": "%s", "index": %d}}}}'
    for kind, index, rank in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
        read = cluster_of({"TF_CONFIG": with_chief % (kind, index)})
        assert read == Cluster(addresses=("c:9", "a:1", "b:2"), rank=rank)
    with pytest.raises(BadInput, match="TF_CONFIG is malformed"):
        cluster_of({"TF_CONFIG": with_chief % ("evaluator", 0)})


NET = "def net():\n    return 1\n"


def test_the_key_of_code_is_what_importing_runs(tmp_path: Path) -> None:
    def key(text: str, function: str = "net") -> str:
        path = tmp_path / "model.py"
        path.write_text(text)
        return code_key(f"{path}:{function}")

    plain = key(NET)
    assert len(plain) == 16
    assert key("def net():  # a comment\n    return 1\n") == plain
    guarded = "\nif __name__ == '__main__':\n    net()\n"
    assert key(f"{NET}\n{guarded}") == plain
    assert key(NET.replace("1", "2")) != plain
    assert key(NET, "other") != plain
    assert key(f"{NET}\n{guarded.replace('==', '!=')}") != plain
    both = code_key(f"{tmp_path / 'model.py'}:net", f"{tmp_path / 'model.py'}:net")
    first, second = both.split()
    assert first == second
    assert code_key("small", None) == ""
    assert code_key(f"{tmp_path / 'missing.py'}:net") == ""
    saved = tmp_path / "net.keras"
    keys = {""}
    for content in (b"\xff", b"\xfe"):
        saved.write_bytes(content)
        keys.add(code_key(str(saved)))
    assert len(keys) == 3
    assert code_key(f"{saved}:net") == ""  # of no module
