"""What a monitor measures while a split trains, and what it does about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpubalance.errors import BadInput
from gpubalance.settings.device import DeviceProfile, DriftPoint, JointProfile
from gpubalance.settings.shares import Shares
from gpubalance.training.split import Split
from tests.jobs.probes import devices_of
from tests.late import tf
from tests.training.cases import in_split, simulated
from tests.training.models import classifier
from tests.training.samples import numbers

X, Y = numbers(240)


def hot_pair() -> tuple[Split, Any]:
    """A split of two equal devices, and a model.

    The first device becomes slower after some seconds of training.
    """
    cool = DeviceProfile(name="cool", alpha_s=0.01, beta_s=0.002)
    hot = cool.model_copy(update={"name": "hot", "drift": (DriftPoint(from_s=0.3, factor=2.0),)})
    split = Split.of(devices_of(hot, cool), Shares((50, 50)), JointProfile())
    with split.scope():
        return split, classifier("adam")()


def test_the_monitor_takes_the_stamps_of_the_shortest_step_in_their_order() -> None:
    """Else one device computes for less than no time, and another waits longer than a step."""
    split, model = in_split(batches=(40, 24))
    monitor = split.monitor(every=1)
    split.fit(model, X[:64], Y[:64], epochs=50, verbose=0, callbacks=[monitor])  # a step each
    assert all(
        seconds > 0
        for epoch in monitor.epochs
        for seconds in (*epoch.compute_s, *epoch.update_s, epoch.sync_s)
    )


def test_the_monitor_says_when_the_split_no_longer_fits(tmp_path: Path) -> None:
    split, model = hot_pair()
    monitor = split.monitor(every=2, log_dir=str(tmp_path))
    with pytest.warns(
        UserWarning, match=r"no longer fits: GPU:1 waits \d+% of the time that GPU:0 computes"
    ):
        split.fit(model, X, Y, epochs=10, verbose=0, callbacks=[monitor])
    with pytest.raises(BadInput, match="the monitor's split is not what trains the model"):
        simulated((50, 50)).fit(model, X, Y, verbose=0, callbacks=[monitor])
    assert 1.1 < monitor.epochs[-1].imbalance < 1.45  # 4/3 on a machine that does nothing else
    assert monitor.epochs[-1].wait_s[1] > 0
    (log,) = tmp_path.iterdir()
    with pytest.raises(tf.errors.OpError, match=f"{log} is not a directory"):
        split.monitor(log_dir=log)
    events = tf.compat.v1.train.summary_iterator(str(log))
    tags = {value.tag for event in events for value in event.summary.value}
    assert {"gpubalance/compute_s/GPU:0", "gpubalance/wait_s/GPU:1", "gpubalance/imbalance"} <= tags


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_split_that_is_rebalanced_follows_its_devices() -> None:
    split, model = hot_pair()
    start = model.get_weights()
    monitor = split.monitor(every=1, rebalance=True)
    split.fit(model, X, Y, epochs=12, shuffle=False, verbose=0, callbacks=[monitor])
    assert split.global_batch == 100
    assert split.batches[0] == pytest.approx(33, abs=8)
    assert monitor.epochs[-1].imbalance < 1.2
    assert any((a != b).any() for a, b in zip(model.get_weights(), start, strict=True))
