"""No step goes through the host: what a replica's device computes stays there.

Only stamps and what is asked for leave it. The replicas are on the second and third of the
process's CPU devices; the first is the host, as beside GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.training.split import Split
from tests.engine.steps import IN_SMALL_PACKS
from tests.support.cases import cases
from tests.support.graphs import Crossing, crossings
from tests.support.late import keras, layers

_HOST = "CPU:0"
_REPLICAS = ("CPU:1", "CPU:2")
# The calls of clocks, and what the step returns of them
_STAMPS = {"PyFunc", "_Retval"}


def _beside_the_host(micro_batches: tuple[int, ...] = ()) -> tuple[Split, Any]:
    """A split whose devices are not the host's, and a model.

    The model has moving averages, random numbers and several metrics. Its learning rate is
    scheduled.
    """
    from gpubalance.engine.replicas import replicas_on
    from gpubalance.engine.step.parity import check_sum

    devices, joint = simulated_devices(str(len(_REPLICAS)))
    split = Split.of(devices, BatchSplit((7, 3), micro_batches), joint, IN_SMALL_PACKS)
    split.replicas = replicas_on(devices, _REPLICAS, joint, IN_SMALL_PACKS)
    check_sum(split.replicas)  # once, which the host looks at
    with split.scope():
        keras.utils.set_random_seed(1)
        model = _sequential(layers.Dense(8))
        rate = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
        metrics = ["accuracy", keras.metrics.AUC(), keras.metrics.F1Score()]
        adam = keras.optimizers.Adam(rate)
        model.compile(adam, "categorical_crossentropy", metrics=metrics)
    return split, model


def _sequential(first: Any) -> Any:
    inner = [first, layers.BatchNormalization(), layers.Dropout(0.1)]
    return keras.Sequential([keras.Input((4,)), *inner, layers.Dense(3, "softmax")])


def _samples(count: int) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x, labels = random.random((count, 4), np.float32), random.integers(0, 3, count)
    return x, np.eye(3, dtype=np.float32)[labels]


def _to_the_host(found: Iterable[Crossing]) -> set[Crossing]:
    return {one for one in found if one.receiver == _HOST and one.sender in _REPLICAS}


def _between(found: Iterable[Crossing]) -> set[Crossing]:
    """From one replica to another, but for Keras' count of steps, and beside the all-reduce."""
    between = (item for item in found if {item.sender, item.receiver} == set(_REPLICAS))
    return {one for one in between if one.takers != {"AssignVariableOp"}}


@cases("micro_batches", (), pytest.param((3, 2), marks=pytest.mark.full))
def test_a_step_of_fit_or_evaluate_sends_nothing_to_the_host(
    micro_batches: tuple[int, ...],
) -> None:
    split, model = _beside_the_host(micro_batches)
    with crossings(*_REPLICAS) as found:
        split.fit(model, *_samples(23), verbose=0)  # and a last batch of another size
        split.evaluate(model, *_samples(20), verbose=0)
    # It has seen the batches come
    assert {item.receiver for item in found} >= set(_REPLICAS)
    assert not _to_the_host(found)
    assert len(_between(found)) == 1  # what the second has counted in `evaluate`


@pytest.mark.full
def test_a_stamped_step_sends_its_stamps_alone_to_the_host() -> None:
    split, model = _beside_the_host()
    with crossings(*_REPLICAS) as found:
        split.fit(model, *_samples(40), verbose=0, callbacks=[split.monitor(every=1)])
    sent = _to_the_host(found)
    assert sent
    assert all(one.takers <= _STAMPS for one in sent), sent


def test_a_stage_sends_the_next_one_its_outputs_and_nothing_to_the_host() -> None:
    from gpubalance.engine.data import as_tensors
    from gpubalance.engine.pipeline.cut_model import CutModel
    from gpubalance.engine.pipeline.micro_batches import micro_batch_of
    from gpubalance.engine.pipeline.pipeline import Pipeline
    from tests.engine.pipelines import graph_of, in_stages, orders_of

    model = _sequential(layers.Dense(8, "relu"))
    calls, blocks, samples = graph_of(model)
    segments = in_stages(len(blocks.starts), 2)
    adam = keras.optimizers.Adam()
    pipeline = Pipeline(CutModel(model, blocks, segments, _REPLICAS, adam))
    batch = [pipeline.cut.held(micro_batch_of(as_tensors(samples.make(6)), calls))] * 3
    with crossings() as found:
        pipeline.step(batch, orders_of(segments, blocks.graph, 3))
    assert not _to_the_host(found)
