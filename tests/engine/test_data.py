"""Every replica gets exactly its batch, whichever way the samples come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from gpubalance.settings.batch_split import BatchSplit
from tests.engine import zoo
from tests.engine.steps import Steps
from tests.engine.test_exact import adam, dense_model
from tests.support.late import keras, layers, tf


@pytest.fixture(scope="module")
def steps() -> Steps:
    return Steps(dense_model, adam, [None, None])


def test_both_sources_give_each_replica_its_batch(steps: Steps) -> None:
    from gpubalance.engine import data

    batches = (7, 3)
    steps.feed.split = BatchSplit(batches)
    streamed = map(steps.feed.deal, steps.samples.stream(10))
    for source in (data.held(steps.feed, steps.samples, ()), streamed):
        for dispatched in islice(source, 4):
            lengths = [(len(x), len(y)) for (x, y), _ in dispatched.values]
            assert lengths == [(size, size) for size in batches]


def test_each_part_is_brought_to_its_replicas_own_device(steps: Steps) -> None:
    from gpubalance.engine import data

    dispatched, *_ = data.held(steps.feed, steps.samples, ())
    made = dispatched.layout.cut.graph.get_operations()
    brought = [one.device[-5:] for one in made if one.type == "Identity" and one.device]
    # Each device is brought its inputs, its labels, and the weights of both.
    assert sorted(brought) == ["CPU:0"] * 3 + ["CPU:1"] * 3


def test_what_is_on_its_way_is_dealt_as_it_was_asked_for(steps: Steps) -> None:
    """All processes deal alike, however far each one's thread is.

    That holds when the split changes, and when batches become longer.
    """
    begins = threading.Event()

    def batches() -> Iterator[Any]:
        for length in (3, 5):
            begins.wait()
            yield tf.zeros((10, length))

    steps.feed.split = BatchSplit((7, 3))
    iterator = batches()
    steps.feed.look_ahead(iterator)
    steps.feed.split = BatchSplit((4, 6))
    begins.set()
    (_, short), (_, long) = steps.feed.take(iterator), steps.feed.take(iterator)
    assert [one.shares.batches for one in (short, long)] == [(7, 3)] * 2
    shapes = [one.layout.signature.shape.as_list() for one in (short, long)]
    assert shapes == [[None, 3], [None, None]]


def test_samples_are_the_same_for_the_same_seed(steps: Steps) -> None:
    from gpubalance.engine.data import Samples

    again, other = (Samples(steps.model, steps.targets, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(steps.samples.make(5)[0], again.make(5)[0])
    assert not np.array_equal(steps.samples.make(5)[0], other.make(5)[0])


def test_samples_suit_inputs_and_outputs_of_every_kind() -> None:
    from gpubalance.engine.data import Samples
    from gpubalance.engine.models import compile_for

    linear = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    scalar = keras.Sequential([keras.Input((4,)), layers.Dense(1), layers.Reshape(())])
    models = zoo.several(), zoo.masked(), linear, scalar
    found = [Samples(model, compile_for(model), seed=0).make(10) for model in models]
    (named, words, *_), labels = zip(*found, strict=True)
    # The outputs are a probability and one of some classes; one of some classes for each word and
    # for all; three numbers; one number.
    shapes = [[(10, 1), (10,)], [(10, 5), (10,)], [(10, 3)], [(10,)]]
    assert [[y.shape for y in keras.tree.flatten(of)] for of in labels] == shapes
    assert set(named) == {"left", "right"}
    assert words.max() < 20  # of so many that have a row


def test_batches_of_many_lengths_are_dealt_as_one_layout_that_opens_once() -> None:
    from gpubalance.engine.feed import Feed
    from gpubalance.engine.replicas import Replicas

    feed = Feed(Replicas(None, ("CPU:0", "CPU:1"), ()), BatchSplit((2, 1)))
    cuts = set()
    for length in (3, 5, 4, 9, 3):
        dispatched = feed.deal((tf.ones((6, length)), tf.ones((6,))))
        shapes = [tuple(x.shape) for (x, _), _ in dispatched.values]
        assert shapes == [(4, length), (2, length)]
        cuts.add(dispatched.layout.cut)
    assert len(cuts) == 2
    assert dispatched.layout.signature[0].shape.as_list() == [None, None]
