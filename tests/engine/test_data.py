"""Every replica gets exactly its batch, whichever way the samples come."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from tests.engine.steps import Steps
from tests.engine.test_exact import adam, dense_model


@pytest.fixture
def data(tensorflow: Any) -> Any:
    """The module, imported late: it loads Keras, which a process that only collects tests need not wait for."""
    from gpubalance.engine import data

    return data


def two_inputs_and_outputs() -> Any:
    import keras

    image = keras.Input((4, 4, 3), name="image")
    words = keras.Input((5,), dtype="int32", name="words")
    seen = keras.layers.Flatten()(image)
    read = keras.layers.Flatten()(keras.layers.Embedding(7, 3)(words))
    both = keras.layers.Concatenate()([seen, read])
    return keras.Model(
        {"image": image, "words": words},
        [
            keras.layers.Dense(5, activation="softmax")(both),
            keras.layers.Dense(1, activation="sigmoid")(both),
            keras.layers.Dense(3)(both),
            keras.layers.Reshape(())(keras.layers.Dense(1)(both)),
        ],
    )


@pytest.mark.parametrize("batches", [(7, 3), (1, 9)])
def test_both_sources_give_each_replica_its_batch(tensorflow: Any, data: Any, batches: tuple[int, ...]) -> None:
    steps = Steps(dense_model, adam, [None, None])
    steps.feed.batches = batches
    streamed = map(steps.feed.deal, steps.samples.stream(sum(batches)))
    for source in (data.held(steps.feed, steps.samples, ()), streamed):
        for dealt in islice(source, 4):
            assert [(len(inputs), len(labels)) for inputs, labels in dealt.values] == [(size, size) for size in batches]


def test_each_part_is_brought_to_its_replicas_own_device(tensorflow: Any, data: Any) -> None:
    steps = Steps(dense_model, adam, [None, None])
    (dealt,) = data.held(steps.feed, steps.samples, ())
    graph = dealt.layout.cut.graph
    brought = [one.device[-5:] for one in graph.get_operations() if one.type == "Identity" and one.device]
    assert sorted(brought) == ["CPU:0", "CPU:0", "CPU:1", "CPU:1"]


def test_samples_are_the_same_for_the_same_seed(tensorflow: Any, data: Any) -> None:
    steps = Steps(dense_model, adam, [None])
    again = data.Samples(steps.model, steps.targets, seed=0)
    other = data.Samples(steps.model, steps.targets, seed=1)
    np.testing.assert_array_equal(steps.samples.make(5)[0], again.make(5)[0])
    assert not np.array_equal(steps.samples.make(5)[0], other.make(5)[0])


def test_several_inputs_and_outputs_are_trained(tensorflow: Any) -> None:
    steps = Steps(two_inputs_and_outputs, adam, [None, None])
    inputs, labels = steps.samples.make(10)
    assert set(inputs) == {"image", "words"}
    assert inputs["words"].max() < 7
    assert [y.shape for y in labels] == [(10,), (10, 1), (10, 3), (10,)]
    loss, _ = steps.step(inputs, labels, (7, 3))
    later = [steps.step(inputs, labels, (7, 3))[0] for _ in range(5)]
    assert later[-1] < loss


def test_batches_of_many_lengths_are_dealt_as_one_layout_that_opens_once(tensorflow: Any) -> None:
    from gpubalance.engine.feed import Feed
    from gpubalance.engine.place import Place

    feed = Feed(Place(None, ("CPU:0", "CPU:1"), ()), (2, 1))
    cuts = set()
    for length in (3, 5, 4, 9, 3):
        dealt = feed.deal((tensorflow.ones((6, length)), tensorflow.ones((6,))))
        assert [tuple(part[0].shape) for part in dealt.values] == [(4, length), (2, length)]
        cuts.add(dealt.layout.cut)
    assert len(cuts) == 2
    assert dealt.layout.signature[0].shape.as_list() == [None, None]
