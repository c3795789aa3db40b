"""What would be a silent surprise, or a hundred lines of TensorFlow's, is told.

It is another model, other batches, or no memory.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import OutOfMemory
from gpubalance.jobs.plan.plan import plan
from gpubalance.results.common import Optimizer
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, DeviceProfile, JointProfile
from gpubalance.settings.planning import PlanRequest
from gpubalance.training.load import load_plan
from gpubalance.training.split import Split
from tests.jobs.probes import devices_of, probe_of
from tests.support.late import layers, losses, ops, tf
from tests.training.cases import apart, in_split, simulated
from tests.training.models import classifier, compiled, dense
from tests.training.samples import numbers

PROFILE = str(Path(__file__).parents[2] / "configs" / "quick-pair.toml")
X, Y = numbers(240)
ADAM = Optimizer(name="Adam", per_weight=2.0)
SGD = Optimizer(name="SGD", per_weight=0.0)


def own_mean(y: Any, p: Any) -> Any:
    return ops.mean(losses.sparse_categorical_crossentropy(y, p))


def hardest(y: Any, p: Any) -> Any:
    """No mean over samples, but one sample does not show it."""
    return ops.max(losses.sparse_categorical_crossentropy(y, p))


def told(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(w.filename == __file__ for w in caught if "split" in str(w.message))
    return [str(w.message) for w in caught if "split" in str(w.message)]


def test_a_plan_of_another_model_is_told_once(tmp_path: Path) -> None:
    devices = simulated_devices(PROFILE)[0]
    made = plan(
        probe_of(devices),
        devices,
        PlanRequest(accumulate=1, sync_s=0.0, global_batch=len(X)),
    )
    assert made.model is not None
    of_this = made.model.model_copy(
        update={"name": "sequential", "parameters": 6 * 16 + 16 + 16 * 3 + 3}
    )
    # A convolution has as many parameters for images of any size.
    others = {
        "other": made.model,
        "this": of_this,
        "frozen": of_this.model_copy(update={"parameters": 16 * 3 + 3}),
        "larger": of_this.model_copy(update={"input_shapes": ((12,),)}),
        "another step": of_this.model_copy(
            update={"step": (("MatMul", 12), ("others", 200))}
        ),
        "another optimizer": of_this.model_copy(update={"optimizer": ADAM}),
        "its optimizer": of_this.model_copy(update={"optimizer": SGD}),
        "more metrics": of_this.model_copy(
            update={"step": (("MatMul", 5), ("others", 100))}
        ),
    }
    texts = {}
    for name, known in others.items():
        path = tmp_path / f"{name}.json"
        changed: dict[str, Any] = {"model": known}
        if name == "frozen":
            data = {"model": "train.py:frozen", "data": "train.py:dataset"}
            changed["settings"] = made.settings.model_copy(update=data)
        path.write_text(made.model_copy(update=changed).model_dump_json())
        with pytest.warns(
            UserWarning, match=r"is of simulated devices \(GPU:0 .*simulate= says that"
        ):
            split = load_plan(path)
        with split.scope():
            model = classifier()()
        texts[name] = [
            told(lambda s=split, m=model: s.fit(m, X, Y, verbose=0)) for _ in range(2)
        ]
    assert texts["this"] == texts["its optimizer"] == [[], []]
    ((text,), again) = texts["other"]
    assert again == []
    measured = (
        "the plan was measured with small (the model small with 648 parameters), and this model "
        "is sequential"
    )
    assert text.startswith(measured)
    balance = (
        r"163 parameters: gpubalance balance --simulate PROFILE.toml --model \S+:FUNCTION "
        r"--global-batch 240 -o \S+other.json --overwrite finds its split: FUNCTION is the one"
    )
    assert re.search(balance, text)
    ((text,), _) = texts["frozen"]
    phase = (
        r"163 parameters: other layers of it are frozen, (.*): gpubalance balance "
        r"--simulate PROFILE.toml --model \S+:FUNCTION --data train.py:dataset --global-batch 240 "
        r"-o \S+frozen-2.json, where FUNCTION builds it as it trains now; see Fine-tune in phases"
    )
    assert re.search(phase, text)
    ((text,), _) = texts["larger"]
    assert "163 parameters, of samples of 12), and this model is sequential" in text
    assert "163 parameters, of samples of 6: gpubalance balance" in text
    ((text,), _) = texts["another optimizer"]
    assert (
        "163 parameters, trained by Adam, which holds 2 numbers for a weight), and this"
        in text
    )
    assert (
        "163 parameters, trained by SGD, which holds 0 numbers for a weight: gpubalance"
        in text
    )
    ((text,), _) = texts["another step"]
    assert "measured with another step of sequential" in text
    assert re.search(
        r"\(operations: MatMul 12, others 200\) than the one that trains \(MatMul 5, others "
        r"\d+\): ",
        text,
    )
    ((text,), _) = texts["more metrics"]
    assert "(operations: MatMul 5, others 100) than" in text


def test_steps_of_another_size_are_told_once() -> None:
    model = in_split()[1]
    (text,) = told(lambda: model.fit(X, Y, batch_size=32, verbose=0))
    assert text.startswith(
        "this fit takes 32 samples a step, 22/10, not the split's 100: leave batch_size out or "
    )
    for size in (32, 100, None):
        assert told(lambda size=size: model.fit(X, Y, batch_size=size, verbose=0)) == []


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", own_mean])
def test_a_single_sample_is_no_false_alarm_and_trains_as_on_one_device(
    loss: Any,
) -> None:
    one_device = compiled(dense(), loss, "adam", metrics=["accuracy"])
    _, model = in_split(compiled, dense(), loss, "adam", metrics=["accuracy"])
    model.set_weights(one_device.get_weights())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for one in (one_device, model):
            one.fit(X[:1], Y[:1], epochs=2, verbose=0)
            one.evaluate(X[:1], Y[:1], verbose=0)
    texts = [str(one.message) for one in caught]
    assert len(texts) == 1
    assert "a batch of 1 is too small to be shared among 2 devices" in texts[0]
    assert apart(model, one_device) < 1e-6


def test_a_single_sample_is_not_all_that_is_tried() -> None:
    split, model = in_split(compiled, dense(), hardest)
    split.fit(model, X[:1], Y[:1], verbose=0)
    with pytest.warns(UserWarning, match="not a mean over samples"):
        split.fit(model, X, Y, verbose=0)


def test_a_model_from_outside_the_scope_is_told_once() -> None:
    model = classifier()()
    split = simulated((70, 30))
    (text,) = told(lambda: model.fit(X, Y, verbose=0))
    assert (
        "was built outside split.scope(), so it trains on one device, not with Split(CPU:0 "
        "CPU: 70, CPU:1"
    ) in text
    assert told(lambda: model.fit(X, Y, verbose=0)) == []
    another = simulated((50, 50))
    with another.scope():
        classifier()()
    assert told(lambda: model.fit(X, Y, verbose=0)) == []  # it is a choice now
    del split


def test_batch_normalisation_that_is_not_synchronised_is_told_once() -> None:
    def normalising(*kinds: Any) -> Any:
        first, *rest = dense()
        return compiled([first, *kinds, *rest])

    of = layers.BatchNormalization

    def texts(fit: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(X[:100], Y[:100], verbose=0)
        assert all(one.filename == __file__ for one in caught)
        return [str(one.message) for one in caught]

    split, model = in_split(normalising, of(name="mine"), of())
    assert texts(model.fit) == [
        f"the model {model.name} normalises each device's own samples (mine and 1 more), so it "
        "trains otherwise than on one device; exact: BatchNormalization(synchronized=True)"
    ]
    assert texts(model.fit) == []
    with split.scope():
        another = normalising(of(name="other"))
        frozen = normalising(of(trainable=False))
        together = normalising(of(synchronized=True))
    assert "(other)" in texts(another.fit)[0]
    alone = in_split(normalising, of(), batches=(100,))[1]
    for exact in (frozen, together, alone):
        assert texts(exact.fit) == []


def test_batches_that_become_others_are_told_once() -> None:
    split, model = in_split()
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    in_twenties = (
        data.shuffle(9).batch(20).map(lambda x, y: (x, y)).repeat(2).prefetch(1)
    )
    taken = "your batches of 20 are regrouped into the split's 100, "
    counted = "so an epoch has 20/100 as many steps; steps_per_epoch counts those"
    assert told(lambda: split.fit(model, in_twenties, verbose=0)) == [taken + counted]
    assert told(lambda: model.fit(in_twenties, verbose=0)) == []
    in_twelves = data.batch(12, drop_remainder=True)
    of_twelve = (taken + counted).replace("20", "12")
    assert told(
        lambda: model.fit(in_twelves.repeat(), steps_per_epoch=2, verbose=0)
    ) == [of_twelve]
    for as_they_were in (data, data.batch(100), data.batch(100).repeat(2)):
        assert told(lambda given=as_they_were: split.fit(model, given, verbose=0)) == []


def test_out_of_memory_names_the_device_its_batch_and_what_to_do() -> None:
    small = DeviceProfile(
        name="small", alpha_s=0.0, beta_s=0.0, memory=40, memory_per_sample=1
    )
    devices = devices_of(small.model_copy(update={"memory": 999}), small)
    split = Split.of(devices, BatchSplit((50, 50)), JointProfile())
    with split.scope():
        model = classifier()()
    with pytest.raises(OutOfMemory) as caught:
        model.fit(X, Y, verbose=0)
    assert (
        caught.value.message == "GPU:1 (small) ran out of memory with its batch of 50"
    )
    assert (
        "in parts, gpubalance.Split([0, 1], [50, 50], micro_batches=[50, 25]), or less there"
        in caught.value.remedy
    )
    assert isinstance(caught.value.__cause__, tf.errors.ResourceExhaustedError)
    parts = Split.of(devices, BatchSplit((50, 50), (50, 25)), JointProfile())
    assert len(parts.fit(model, X, Y, verbose=0).history["loss"]) == 1
    fitting = Split.of(devices, BatchSplit((60, 40)), JointProfile())
    too_large = (
        "of 100 samples a step, and got 110: leave batch_size out, or give up to 100"
    )
    with pytest.raises(OutOfMemory, match=too_large):
        fitting.fit(model, X, Y, batch_size=110, verbose=0)


def test_a_gpu_is_found_by_its_name_in_tensorflows_text() -> None:
    from gpubalance.training.memory import out_of_memory

    devices = [
        Device(index=i, uuid=f"GPU-{i}", name=name, memory_bytes=None, simulated=False)
        for i, name in ((1, "B"), (0, "A"))
    ]
    split = Split.of(devices, BatchSplit((568, 820)), JointProfile())
    found = MemoryError(
        "OOM when allocating tensor with shape[568,64] on "
        "/job:localhost/replica:0/task:0/device:GPU:1 by allocator"
    )
    error = out_of_memory(
        found,
        ("GPU:1", "GPU:0"),
        split.devices,
        split.shares,
        BatchSplit((568, 820)),
        trains=False,
    )
    assert error.message == "GPU:1 (B) ran out of memory with its batch of 568"
    assert "batch_size" in error.remedy
    assert "micro_batches" not in error.remedy
    unknown = out_of_memory(
        MemoryError(),
        ("GPU:1", "GPU:0"),
        split.devices,
        split.shares,
        None,
        trains=True,
    )
    assert unknown.message == "a device ran out of memory before its first step"
