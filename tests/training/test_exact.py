"""Training with a split is training on one device: weights, logged losses and metrics."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from tests.late import keras, tf
from tests.training.cases import CASES, SAMPLES, dense, differences, in_turn, numbers, simulated

SPLITS = [(70, 30), (99, 1), (1, 1, 98)]
LASTS = [80, 2, 70, 40, 1, 5]


# What these are about another case has too: rows of an embedding with Adam, and a precision of layers with float16.
LIKE_OTHERS = {"plain", "mixed_bfloat16", "embedding, RMSprop", "embedding, Adagrad"}
# Each case with one split, each split with several cases; the others are a campaign.
EVERY = [
    pytest.param(
        name,
        batches,
        id=f"{name}-{batches}",
        marks=[pytest.mark.campaign] * ((i + j) % len(SPLITS) != 0 or name in LIKE_OTHERS),
    )
    for i, name in enumerate(CASES)
    for j, batches in enumerate(SPLITS)
]


@pytest.mark.parametrize(("name", "batches"), EVERY)
def test_a_split_gives_what_one_device_gives(tensorflow: Any, name: str, batches: tuple[int, ...]) -> None:
    case = CASES[name]
    # Of each output's own loss Keras takes the mean over batches of unlike sizes, which is another from trace to trace.
    lasts = [SAMPLES] if "outputs" in name else LASTS
    last = lasts[(list(CASES).index(name) + SPLITS.index(batches)) % len(lasts)]
    found = differences(case, simulated(batches), last)
    assert found.weights < case.within
    assert found.logs < max(case.within, 1e-5)


@pytest.mark.parametrize(
    ("name", "lasts"),
    [
        ("synchronised batch norm", (2, 1)),
        ("embedding, Adam", (1,)),
        ("masked sentences", (2,)),
        ("train_step of one's own", (1,)),
    ],
)
def test_a_last_batch_of_any_size_does_no_harm(tensorflow: Any, name: str, lasts: tuple[int, ...]) -> None:
    """Of fewer samples than devices too: then all of them have the whole of it, and one counts it."""
    for found in in_turn(CASES[name], simulated((1, 1, 98)), lasts):
        assert found.weights < 1e-5
        assert found.logs < 1e-5


@pytest.mark.parametrize(
    ("name", "lasts"),
    [
        ("AdamW, clipped, EMA", (80, 3)),
        ("embedding, Adam", (1,)),
        ("embedding of positions, Adam", (80,)),
        ("train_step of one's own", (80, 1)),
        ("counters of one's own layer", (80, 1)),
        ("train_step of Keras' guide", (80, 1)),
    ],
)
def test_micro_batches_change_nothing(tensorflow: Any, name: str, lasts: tuple[int, ...]) -> None:
    for found in in_turn(CASES[name], simulated((70, 30), (20, 30)), lasts):
        assert found.weights < 1e-5
        assert found.logs < 1e-5


def test_logs_that_are_exact_are_not_warned_of(tensorflow: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* logs ")
        assert differences(CASES["train_step of one's own"], simulated((70, 30)), 2).logs < 1e-5


def test_a_test_step_that_is_a_function_logs_what_one_device_does(tensorflow: Any) -> None:
    class Own(keras.Sequential):  # type: ignore[misc]
        @tf.function  # type: ignore[untyped-decorator]
        def test_step(self, data: Any) -> Any:
            x, y = data
            p = self(x)
            return {"mean": tf.reduce_mean(p[:, 0]), "renamed": self.compute_metrics(x, y, p)["accuracy"]}

    def evaluated(evaluate: Any, scope: Any, **options: Any) -> Any:
        with scope:
            model = Own(dense())
            model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.set_weights([np.full(weight.shape, 0.1 + i) for i, weight in enumerate(model.get_weights())])
        x, y = numbers(170)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".* logs ")
            return evaluate(model, x, y, verbose=0, return_dict=True, **options)

    split = simulated((70, 30))
    expected = evaluated(keras.Model.evaluate, nullcontext(), batch_size=100)
    assert evaluated(split.evaluate, split.scope()) == pytest.approx(expected)
