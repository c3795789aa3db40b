"""What would be a silent surprise, or a hundred lines of TensorFlow's, is told.

It is another model, other batches, or no memory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import OutOfMemory
from gpubalance.results.common import Optimizer
from gpubalance.results.plan import Plan
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import DeviceProfile, JointProfile
from gpubalance.training.split import Split, load_plan
from tests.jobs.probes import devices_of
from tests.support.altered import altered
from tests.support.known import known
from tests.support.late import keras, layers, losses, ops, tf
from tests.support.told import refused, warned, warnings_of
from tests.training.cases import apart, in_split, simulated
from tests.training.models import classifier, compiled, dense
from tests.training.plans import planned
from tests.training.samples import in_sizes, numbers
from tests.training.test_hosts import TWO_HOSTS
from tests.training.told import metric

X, Y = numbers(240)
ADAM = Optimizer(name="Adam", per_weight=2.0)
SGD = Optimizer(name="SGD", per_weight=0.0)


def own_mean(y: Any, p: Any) -> Any:
    return ops.mean(losses.sparse_categorical_crossentropy(y, p))


def hardest(y: Any, p: Any) -> Any:
    """No mean over samples, but one sample does not show it."""
    return ops.max(losses.sparse_categorical_crossentropy(y, p))


def told(call: Any) -> list[str]:
    return [text for text in warnings_of(call, __file__) if "split" in text]


def plan_of_small(**settings: str) -> Plan:
    return planned(None, settings, accumulate=1, sync_s=0.0, global_batch=len(X))


def test_a_plan_of_another_model_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    made = plan_of_small(model="train.py:small", data="train.py:dataset")
    path.write_text(made.model_dump_json())
    simulated_only = r"is for simulated devices \(GPU:0 .*simulate= confirms that"
    with pytest.warns(UserWarning, match=simulated_only):
        split = load_plan(path)
    with split.scope():
        model = classifier()()
    (text,) = told(lambda: split.fit(model, X, Y, verbose=0))
    assert "train.py:small (the model small with 648 parameters), but this" in text
    own = "--model FILE.py:FUNCTION --data FILE.py:FUNCTION --global-batch 240 -o NEW.json"
    balance = (
        f"gpubalance balance --simulate PROFILE.toml --gpus 0 1 {own} finds its split"
    )
    assert f"163 parameters: {balance}, if FUNCTION in FILE.py " in text
    assert told(lambda: split.fit(model, X, Y, verbose=0)) == []
    # The model's optimizer is built by then: else the text would come twice.
    of_sgd = altered(made, model=altered(known(made.model), optimizer=SGD))
    path.write_text(of_sgd.model_dump_json())
    with pytest.warns(UserWarning, match=simulated_only):
        split = load_plan(path)
    with split.scope():
        model = classifier("adam")()
    (text,) = told(lambda: split.fit(model, X, Y, verbose=0))
    assert "trained by Adam" in text


def test_how_a_model_is_unlike_the_plans_is_told_with_what_to_do() -> None:
    from gpubalance.training.measured import plan_mismatch_text

    made = plan_of_small()
    of_plan = altered(known(made.model), name="sequential", parameters=163)
    model = classifier()()
    model.optimizer.build(model.trainable_variables)  # as fit does
    step = (("MatMul", 5), ("others", 150))

    def text(settings: dict[str, str] | None = None, **changes: Any) -> str:
        """What is told of a plan of the model with these changes."""
        of_settings = altered(made.settings, **(settings or {}))
        changed = altered(made, model=altered(of_plan, **changes), settings=of_settings)
        return plan_mismatch_text(changed, model, file="frozen.json", step=step)

    assert text() == text(optimizer=SGD) == text(step=step) == ""
    phase = (
        r"163 parameters: its best split may differ: .* --model \S+:FUNCTION --data "
        r"train.py:dataset .*frozen-2.json, where .* froze other layers, see .Fine-tune in phases"
    )
    functions = {"model": "train.py:frozen", "data": "train.py:dataset"}
    assert re.search(phase, text(functions, parameters=16 * 3 + 3))
    # A convolution has as many parameters for images of any size.
    larger = text(input_shapes=((12,),))
    assert "163 parameters, of samples of 12), but this model is sequential" in larger
    assert "163 parameters, of samples of 6: gpubalance balance" in larger
    of_adam = text(optimizer=ADAM)
    holds = "163 parameters, trained by {}, which holds {} numbers for a weight"
    assert f"{holds.format('Adam', 2)}), but this" in of_adam
    assert f"{holds.format('SGD', 0)}: gpubalance" in of_adam
    another = text(step=(("MatMul", 12), ("others", 200)))
    assert "measured with another step of sequential" in another
    than = "(operations: MatMul 12, others 200) than the one being trained (MatMul 5, others 150): "
    assert than in another
    assert text(step=(("MatMul", 5), ("others", 100))) == ""
    fewer = text(step=(("MatMul", 5), ("others", 99)))
    assert "(operations: MatMul 5, others 99) than" in fewer


@pytest.mark.parametrize(
    ("hosts", "by", "simulate", "words"),
    [
        (("a", "b"), "command", 1, "--simulate 1 --hosts a,b --gpus a:0 b:0"),
        (("a", "b"), "ray", 1, "--simulate 1 --hosts ray --gpus a:0 b:0"),
        (("a", "b"), None, None, "--hosts a,b --gpus a:0 b:0"),
        # The profile itself has the hosts, on this machine.
        (("a", "b"), None, "two", "--simulate two --gpus a:0 b:0"),
        ((None, None), None, None, "--gpus 0 0"),
    ],
)
def test_the_command_for_another_plan_names_hosts_and_devices(
    hosts: tuple[str | None, ...], by: str | None, simulate: Any, words: str
) -> None:
    from gpubalance.training.measured import balance_command, plan_mismatch_text

    made = plan_of_small(model="train.py:small")
    devices = []
    for device, host in zip(made.devices, hosts, strict=True):
        is_simulated = simulate is not None
        devices.append(altered(device, index=0, host=host, simulated=is_simulated))
    of_adam = altered(known(made.model), parameters=163, optimizer=ADAM)
    made = altered(made, devices=tuple(devices), reached_by=by, model=of_adam)
    start = f"gpubalance balance {words} --model "
    assert balance_command(made, simulate).startswith(start)
    model = compiled(keras.Sequential(dense(), name="small"))
    model.optimizer.build(model.trainable_variables)  # as fit does
    text = plan_mismatch_text(made, model, simulate, file="plan.json")
    assert (
        f": {start}train.py:small --global-batch 240 -o plan.json --overwrite" in text
    )


def test_steps_of_another_size_are_told_once() -> None:
    model = in_split()[1]
    (text,) = told(lambda: model.fit(X[:32], Y[:32], verbose=0))
    takes = "this fit takes 32 samples a step (22/10), not the split's 100:"
    assert text.startswith(f"{takes} there are only 32 samples; gpubalance balance ")
    assert " --global-batch 32 --batch-multiple 1 finds" in text
    model = in_split()[1]
    (text,) = told(lambda: model.fit(X, Y, batch_size=32, verbose=0))
    assert text.startswith(f"{takes} leave batch_size out or ")
    for size in (32, 100, None):
        assert told(lambda size=size: model.fit(X, Y, batch_size=size, verbose=0)) == []


def test_a_short_batch_that_comes_first_by_chance_is_not_told_of() -> None:
    """Keras shuffles the batches of a PyDataset."""

    def fit(*sizes: int) -> None:
        in_split()[1].fit(in_sizes(*sizes), shuffle=False, verbose=0)

    assert told(lambda: fit(40, 100, 100)) == []
    assert told(lambda: fit(100, 40)) == []
    for sizes in ((20, 40, 40), (40, 40, 20), (40,)):
        (text,) = told(lambda sizes=sizes: fit(*sizes))
        assert text.startswith("this fit takes 40 samples a step (28/12), not the")


@pytest.mark.full
def test_a_single_sample_is_no_false_alarm_and_trains_as_on_one_device() -> None:
    one_device = compiled(dense(), own_mean, "adam", metrics=["accuracy"])
    _, model = in_split(compiled, dense(), own_mean, "adam", metrics=["accuracy"])
    model.set_weights(one_device.get_weights())

    def train() -> None:
        for one in (one_device, model):
            one.fit(X[:1], Y[:1], epochs=2, verbose=0)
            one.evaluate(X[:1], Y[:1], verbose=0)

    (text,) = warnings_of(train)
    assert "a batch of 1 has fewer samples than the 2 devices" in text
    assert apart(model, one_device) < 1e-6


@pytest.mark.full
def test_a_single_sample_is_not_all_that_is_tried() -> None:
    split, model = in_split(compiled, dense(), hardest)
    single = warnings_of(lambda: split.fit(model, X[:1], Y[:1], verbose=0))
    assert "not a mean over samples" not in "".join(single)
    with warned("not a mean over samples"):
        split.fit(model, X, Y, verbose=0)


def test_each_model_from_outside_the_scope_is_told_once() -> None:
    model, second = classifier()(), classifier()()
    split = simulated((70, 30))
    (text,) = told(lambda: model.fit(X, Y, verbose=0))
    assert "outside split.scope(), so it trains on one device, not with" in text
    assert told(lambda: model.fit(X, Y, verbose=0)) == []
    (text,) = told(lambda: second.fit(X, Y, verbose=0))
    assert text.startswith(f"the model {second.name} was built outside")
    model = classifier()()
    another = simulated((50, 50))
    with another.scope():
        classifier()()
    assert told(lambda: model.fit(X, Y, verbose=0)) == []  # it is a choice now
    del split


def test_a_metric_from_outside_the_scope_counts_each_sample_once() -> None:
    """The devices add to the same variables. In a process of several they are its own."""
    from gpubalance.training.scope import own_metric_text

    outside = metric("sum")
    split, model = in_split(compiled, dense(), metrics=[outside])
    alone = compiled(dense(), metrics=[metric("sum")])
    alone.set_weights(model.get_weights())
    logged: list[dict[str, float]] = []

    def see(_batch: int, logs: Any) -> None:
        logged.append({name: float(value) for name, value in logs.items()})

    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=see)]
    options = {"shuffle": False, "verbose": 0, "callbacks": callbacks}
    assert told(lambda: split.fit(model, X, Y, batch_size=100, **options)) == []
    alone.fit(X, Y, 100, **options)
    for mine, its in zip(logged[:3], logged[3:], strict=True):
        assert mine == pytest.approx(its)
    strategy = split.replicas.strategy
    assert "each process logs" in own_metric_text(model, strategy)
    assert not own_metric_text(in_split(compiled, dense())[1], strategy)


def test_batch_normalisation_that_is_not_synchronised_is_told_once() -> None:
    from gpubalance.engine.models import unsynchronised_text

    def normalising(*kinds: Any) -> Any:
        first, *rest = dense()
        return compiled([first, *kinds, *rest])

    of = layers.BatchNormalization

    def texts(fit: Any) -> list[str]:
        return warnings_of(lambda: fit(X[:100], Y[:100], verbose=0))

    model = in_split(normalising, of(name="mine"), of())[1]
    (text,) = texts(model.fit)
    own = f"the model {model.name} normalises each device's own samples"
    assert text.startswith(f"{own} (mine and 1 more), so the result differs from tr")
    assert texts(model.fit) == []
    exact = normalising(of(trainable=False), of(synchronized=True))
    assert unsynchronised_text(exact, micro=False, xla=False) == ""
    alone = in_split(normalising, of(), batches=(100,))[1]
    assert texts(alone.fit) == []


def test_batches_that_become_others_are_told_once() -> None:
    split, model = in_split()
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    in_twenties = data.shuffle(9).batch(20).map(lambda *of: of).repeat(2).prefetch(1)
    of_twenty = "your batches of 20 are regrouped into batches of 100, the split's: an epoch's number of steps is multiplied by 20/100"
    assert told(lambda: split.fit(model, in_twenties, verbose=0)) == [of_twenty]
    assert told(lambda: model.fit(in_twenties, verbose=0)) == []
    in_twelves = data.batch(12, drop_remainder=True).repeat()
    (text,) = told(lambda: model.fit(in_twelves, steps_per_epoch=2, verbose=0))
    assert text.endswith(
        "regrouped into batches of 100, the split's: steps_per_epoch=2 now means 2 steps of 100"
    )
    for as_they_were in (data, data.batch(100), data.batch(100).repeat(2)):
        assert told(lambda given=as_they_were: split.fit(model, given, verbose=0)) == []


def test_out_of_memory_names_the_device_its_batch_and_what_to_do() -> None:
    memory = {"memory": 40, "memory_per_sample": 1}
    small = DeviceProfile(name="small", alpha_s=0.0, beta_s=0.0, **memory)
    devices = devices_of(small.model_copy(update={"memory": 999}), small)
    split = Split.of(devices, BatchSplit((50, 50)), JointProfile())
    with split.scope():
        model = classifier()()
    with pytest.raises(OutOfMemory) as caught:
        model.fit(X, Y, verbose=0)
    told, remedy = caught.value.message, caught.value.remedy
    assert told == "GPU:1 (small) ran out of memory with its batch of 50"
    in_parts = "gpubalance.Split([0, 1], [50, 50], micro_batches=[50, 25])"
    assert f"use micro-batches, {in_parts}, or a smaller batch on that device" in remedy
    assert isinstance(caught.value.__cause__, tf.errors.ResourceExhaustedError)
    parts = Split.of(devices, BatchSplit((50, 50), (50, 25)), JointProfile())
    assert len(parts.fit(model, X, Y, verbose=0).history["loss"]) == 1
    fitting = Split.of(devices, BatchSplit((60, 40)), JointProfile())
    too_large = "for 100 samples a step, but got 110: leave out batch_size, or give at"
    with refused(f"{too_large} most 100", OutOfMemory):
        fitting.fit(model, X, Y, batch_size=110, verbose=0)
    by_ratios = Split.of(devices, BatchSplit((1, 1)), JointProfile())
    by_ratios.takes_any_batch = True
    with refused("use a smaller batch_size, such as 50, or a split with", OutOfMemory):
        by_ratios.fit(model, X, Y, batch_size=100, verbose=0)


def test_out_of_memory_in_one_of_several_processes_is_its_device_s() -> None:
    """TensorFlow gives each process's own device the same name."""
    from gpubalance.engine.replicas import Replicas
    from gpubalance.training.memory import out_of_memory

    devices, _ = simulated_devices(TWO_HOSTS)
    cluster = Cluster(addresses=("a:1", "a:2", "b:1"), rank=2)
    replicas = Replicas(None, ("CPU:0",), (), cluster=cluster)
    shares = BatchSplit((80, 40, 24))
    where = "/job:worker/replica:0/task:2/device:CPU:0"
    ended = tf.errors.ResourceExhaustedError(None, None, f"OOM when allocating {where}")
    error = out_of_memory(ended, replicas, devices, shares, shares, trains=True)
    told = "beta:0 (Host card C) ran out of memory with its batch of 24"
    assert (error.replica, error.message) == (2, told)
    # A split of several hosts' GPUs can't be made by hand.
    assert "gpubalance.Split(" not in error.remedy
    assert "balance --accumulate auto plans micro-batches; " in error.remedy
