"""What a monitor measures while a split trains, and what it does about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import OutOfMemory
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import DeviceProfile, DriftPoint, JointProfile
from gpubalance.training.split import Split
from tests.jobs.probes import QUICK, devices_of
from tests.support.altered import altered
from tests.support.cases import cases, full
from tests.support.late import epoch_times, keras, tf
from tests.support.python import python
from tests.support.told import refused, warned, warnings_of
from tests.training.cases import in_split, largest, simulated
from tests.training.models import classifier
from tests.training.samples import numbers

X, Y = numbers(240)


def hot_pair(from_s: float = 0.3, **others: Any) -> tuple[Split, Any]:
    """A split of two equal devices, and a model.

    The first device becomes slower after so many seconds of training; `others` are both's fields.
    """
    cool = DeviceProfile(name="cool", alpha_s=0.01, beta_s=0.002, **others)
    hot = altered(cool, name="hot", drift=(DriftPoint(from_s=from_s, factor=2.0),))
    return of_pair(hot, cool, BatchSplit((50, 50)))


def of_pair(
    first: DeviceProfile, second: DeviceProfile, shares: BatchSplit
) -> tuple[Split, Any]:
    """A split of these devices, and a model."""
    split = Split.of(devices_of(first, second), shares, JointProfile())
    with split.scope():
        return split, classifier("adam")()


def test_the_monitor_takes_the_stamps_of_the_shortest_step_in_their_order() -> None:
    """Else one device computes for less than no time, and another waits longer than a step."""
    split, model = in_split(batches=(40, 24))
    monitor = split.monitor(every=1)
    # A step each
    split.fit(model, X[:64], Y[:64], epochs=20, verbose=0, callbacks=[monitor])
    for epoch in monitor.epochs:
        assert min(*epoch.compute_s, *epoch.update_s, epoch.sync_s) > 0


def test_the_monitor_says_when_the_split_no_longer_fits(tmp_path: Path) -> None:
    split, model = hot_pair()
    monitor = split.monitor(every=2, log_dir=str(tmp_path))
    how: Any = {"epochs": 10, "verbose": 0, "callbacks": [monitor]}
    (text,) = warnings_of(lambda: split.fit(model, X, Y, **how), __file__)
    assert re.search(
        r"is no longer balanced: GPU:1 waits \d+% of the time that GPU:0 com", text
    )
    with refused("the monitor's split is not what trains the model"):
        simulated((50, 50)).fit(model, X, Y, verbose=0, callbacks=[monitor])
    # 4/3 on a machine that does nothing else
    assert 1.1 < monitor.epochs[-1].imbalance < 1.45
    assert monitor.epochs[-1].wait_s[1] > 0
    (log,) = tmp_path.iterdir()
    with pytest.raises(tf.errors.OpError, match=f"{log} is not a directory"):
        split.monitor(log_dir=log)
    tags = {value.tag for value in written(log)}
    named = {"compute_s/GPU:0", "wait_s/GPU:1", "imbalance"}
    assert {f"gpubalance/{name}" for name in named} <= tags


@pytest.mark.full  # a TensorFlow that nobody has set up
def test_a_monitor_may_be_made_before_the_scope(tmp_path: Path) -> None:
    code = (
        "import sys, gpubalance; split = gpubalance.Split(batches=[7, 3], simulate=2);"
        "split.monitor(log_dir=sys.argv[1]); split.scope(); print(split.replicas.names)"
    )
    done = python("-c", code, str(tmp_path), check=True)
    assert done.stdout.strip() == "('CPU:0', 'CPU:1')"


def test_each_epoch_and_each_training_has_its_own_steps(tmp_path: Path) -> None:
    told: Any = {"devices": devices_of(QUICK, QUICK)}
    told |= {"global_batch": 8, "takes_any_batch": False, "stamp_for": lambda _: None}
    told |= {"is_first": True}
    how: Any = {"every": 1, "rebalance": False, "noise": False, "log_dir": tmp_path}
    monitor = epoch_times.Monitor(SimpleNamespace(**told), **how)
    for training, times_s in enumerate(((9.0,), (0.5, 0.25))):
        monitor.on_train_begin()
        for epoch, own_s in enumerate(times_s):
            row = (5.0, 5.0 + own_s, 15.0, 15.125)
            monitor.note_stamped_step(
                epoch, np.array([row, row]), BatchSplit((6, 2)), None
            )
            if training:
                monitor.on_epoch_end(epoch)
            else:  # it is interrupted after a change
                monitor.changes.append("the first training's")
    assert not any(one.changes for one in monitor.epochs)
    monitor.on_epoch_end(2)  # of which no step was stamped
    assert [one.compute_s for one in monitor.epochs] == [(0.5, 0.5), (0.25, 0.25)]
    (log,) = tmp_path.iterdir()
    tags = [value.tag for value in written(log)]
    assert tags.count("gpubalance/update_s/GPU:1") == 2
    assert tags.count("gpubalance/imbalance") == 2
    assert "gpubalance/noise_scale" not in tags  # nobody knows it


def test_of_several_processes_only_the_first_writes_and_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: Any = {"devices": devices_of(QUICK, QUICK), "shares": BatchSplit((6, 2))}
    told |= {"global_batch": 8, "takes_any_batch": False, "stamp_for": lambda _: None}
    how: Any = {"every": 1, "rebalance": False, "noise": tmp_path / "noise.json"}
    for is_first, files in ((False, 0), (True, 2)):
        split = SimpleNamespace(**told, is_first=is_first, plan=None)
        monitor = epoch_times.Monitor(split, log_dir=tmp_path / "log", **how)
        monitor.set_model(SimpleNamespace(name="small"))
        monitor.on_train_begin()
        row = (5.0, 9.0, 15.0, 15.125)
        stamps = np.array([row, (5.0, 5.5, 15.0, 15.125)])
        monitor.note_stamped_step(1, stamps, BatchSplit((6, 2)), None)
        with warned("is no longer balanced") if is_first else nullcontext():
            monitor.on_epoch_end(0)
        monitor.on_train_end()
        assert len([*tmp_path.iterdir()]) == files
        assert bool(capsys.readouterr().out) == is_first


def written(log: Path) -> list[Any]:
    """What TensorBoard reads there."""
    events = tf.compat.v1.train.summary_iterator(str(log))
    return [value for event in events for value in event.summary.value]


@cases("ratios", False, full(True))
def test_a_short_last_batch_says_nothing_of_the_split_that_was_set(
    ratios: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """Only it is stamped in the last epoch: 8/4, of which the fixed costs decide."""
    fast = DeviceProfile(name="fast", alpha_s=0.04, beta_s=0.0005)
    slow = DeviceProfile(name="slow", alpha_s=0.02, beta_s=0.0015)
    split, model = of_pair(fast, slow, BatchSplit((80, 40)))
    split.takes_any_batch = ratios
    monitor = split.monitor(every=3)
    x, y = numbers(252)
    options = {"batch_size": 120, "epochs": 4, "verbose": 0}
    split.fit(model, x, y, callbacks=[monitor], **options)
    assert monitor.epochs[-1].batches == (8, 4)
    assert monitor.epochs[-1].imbalance > 1.2
    assert not [str(one.message) for one in recwarn if "fits" in str(one.message)]

    # By whole batches it is judged, and named as it was set
    unfit, model = of_pair(fast, altered(slow, alpha_s=0.1), BatchSplit((80, 40)))
    unfit.takes_any_batch = ratios
    with warned("the split 80/40 is no longer balanced: GPU:0 wait"):
        unfit.fit(model, x, y, callbacks=[unfit.monitor(every=1)], **options)


def ending(model: Any, monitor: Any, more: int) -> Any:
    """Ends training some steps after the monitor's first change, as a busy machine delays that."""
    left = more

    def end(_batch: int, logs: Any) -> None:
        nonlocal left
        if monitor.changes:
            left -= 1
            model.stop_training = left <= 0

    return keras.callbacks.LambdaCallback(on_train_batch_end=end)


def followed(
    split: Split,
    model: Any,
    more: int = 10,
    *,
    monitor: Any = None,
    others: Sequence[Any] = (),
) -> Any:
    """The monitor of an epoch in which the split changed, with other callbacks."""
    monitor = monitor or split.monitor(every=1, rebalance=True)
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(100)
    callbacks = [monitor, *others, ending(model, monitor, more)]
    how = {"steps_per_epoch": 1000, "shuffle": False, "verbose": 0}
    split.fit(model, batches, callbacks=callbacks, **how)
    return monitor


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_split_is_rebalanced_within_the_epoch_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    split, model = hot_pair(from_s=1.2)
    alone = classifier("adam")()
    alone.set_weights(model.get_weights())
    caplog.set_level("INFO", "gpubalance")
    monitor = split.monitor(every=1, rebalance=True, log_dir=tmp_path)
    followed(split, model, monitor=monitor)

    first = monitor.changes[0]
    said = capsys.readouterr().out.splitlines()
    line = rf"step {first.step}: 50/50 → \d+/\d+, GPU:0 became \d+ % slower; 1\.\d\d × what the .*"
    assert re.fullmatch(line, said[0])
    counted = rf"first in step {first.step}: \d\.\d\d × what 50/50 would have given si"
    assert re.search(counted, said[-1])
    own = [record for record in caplog.records if record.name == "gpubalance"]
    assert [record.message for record in own] == said
    values = written(*tmp_path.iterdir())
    tags = {value.tag for value in values}
    named = {"batch/GPU:0", "split_gain", "imbalance"}
    assert {f"gpubalance/{name}" for name in named} <= tags
    texts = [value for value in values if value.tag == "gpubalance/split"]
    assert tf.make_ndarray(texts[0].tensor).tolist() == [said[0].encode()]

    (epoch,) = monitor.epochs
    assert epoch.changes == tuple(monitor.changes)
    assert split.batches == monitor.changes[-1].after.batches
    assert split.global_batch == 100
    assert split.batches[0] < 46
    # Its steps were exact before, meanwhile and after.
    steps = int(model.optimizer.iterations.numpy())
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(100)
    alone.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0)
    assert largest(model.get_weights(), alone.get_weights()) < 1e-5
    # Another training, without a change.
    assert monitor.gain is not None
    split.fit(model, X[:100], Y[:100], verbose=0, callbacks=[monitor])
    assert monitor.gain is None


def test_a_fit_of_another_batch_leaves_the_split_as_it_is_and_says_so() -> None:
    split, model = hot_pair(from_s=0.0)
    monitor = split.monitor(every=1, rebalance=True)
    with warned("The monitor rebalances only with steps of 100"):
        split.fit(model, X, Y, batch_size=80, epochs=5, verbose=0, callbacks=[monitor])
    assert split.batches == (50, 50)
    with refused("fit takes one monitor, not two"):
        split.fit(model, X, Y, verbose=0, callbacks=[monitor, split.monitor()])


@pytest.mark.full
def test_ratios_are_rebalanced_at_the_batch_that_they_divide(tmp_path: Path) -> None:
    """Else a batch of 7 would be shared out, in sevenths for ever."""
    profile = tmp_path / "pair.toml"
    card = '[[device]]\nname = "card"\nalpha_s = 0.01\nbeta_s = 0.001\n'
    profile.write_text(2 * card)
    split = Split([0, 1], ratios=[1, 6], simulate=profile)
    with split.scope():
        model = classifier("adam")()
    model.optimizer.iterations.assign(1000)  # as from a checkpoint
    monitor = followed(split, model, more=1)
    assert split.global_batch == 100
    assert split.batches[0] > 30
    assert monitor.changes[0].step > 1000


@pytest.mark.full
def test_a_lack_of_memory_that_a_rebalance_has_made_is_told_as_one() -> None:
    split, model = hot_pair(from_s=0.0, memory=52, memory_per_sample=1)
    with pytest.raises(OutOfMemory, match=r"its batch of \d+, to which") as caught:
        followed(split, model)
    assert "the monitor raised it from 50 in step " in caught.value.message
    assert "leave out rebalance=True: then the split stays 50/50" in caught.value.remedy


@pytest.mark.full
@pytest.mark.filterwarnings("error::UserWarning")
def test_another_model_that_a_callback_trains_leaves_the_monitor_alone() -> None:
    """Another model that a callback tests and trains leaves the monitor alone.

    As an average of the weights, or a teacher; its steps are its own.
    """
    split, model = hot_pair(from_s=0.0)
    with split.scope():
        other = classifier("adam")()
    noted: list[int] = []

    class Tests(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            if batch % 5 == 0:
                other.set_weights(model.get_weights())
                other.evaluate(X[:60], Y[:60], verbose=0)
                noted.append(len(monitor._steps))
                other.fit(X[:100], Y[:100], epochs=2, verbose=0)
                noted.append(len(monitor._steps))

    monitor = split.monitor(every=1, rebalance=True)
    followed(split, model, 1, monitor=monitor, others=[Tests()])
    assert monitor.changes
    assert noted[::2] == noted[1::2]
    assert noted[2] > noted[0]
