"""Training with a split is training on one device: weights, logged losses and metrics."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.training.cases import CASES, SAMPLES, in_turn, simulated

# Logs that are exact are not warned of.
pytestmark = pytest.mark.filterwarnings(r"error:.* logs\b:UserWarning")
SPLITS = [(70, 30), (99, 1), (1, 1, 98)]
OF_ONE = ((1, 99),)
OF_THREE = ((1, 1, 98),)
IN_PARTS = ((70, 30), (20, 30))
LASTS = [80, 2, 70, 40, 1, 5]
# Each with what is hard for it: micro-batches, or a last batch of fewer samples than devices.
HARDEST: list[tuple[str, tuple[Any, ...], tuple[int, ...]]] = [
    ("synchronised batch norm", OF_THREE, (2, 1)),
    ("masked sentences", OF_ONE, (2,)),
    ("embedding of positions, Adam", OF_ONE, (1,)),
    ("train_step of one's own", OF_ONE, (1,)),
    ("metrics of many kinds", OF_ONE, (80,)),
    ("AdamW, clipped, EMA", IN_PARTS, (3,)),
    ("embedding of positions, Adam", IN_PARTS, (80,)),
    ("train_step of one's own", IN_PARTS, (80,)),
    ("train_step of Keras' guide", IN_PARTS, (1,)),
]

# The hardest do that for their own cases, and others have the rest of what `plain` has.
LIKE_OTHERS = {"plain", *(name for name, _, _ in HARDEST)}
FIRST = {
    "mean_with_sample_weight, steps_per_execution 4",
    "two inputs and outputs",
    "state and losses of one's own layer",
}
# Each case with one split, each split with several cases; the others are a campaign.
EVERY = []
for (i, name), (j, batches) in product(enumerate(CASES), enumerate(SPLITS)):
    marks = [] if name in FIRST else [pytest.mark.full]
    if (i + j) % len(SPLITS) != 0 or name in LIKE_OTHERS:
        marks = [pytest.mark.campaign]
    EVERY.append(pytest.param(name, batches, id=f"{name}-{batches}", marks=marks))


@pytest.mark.parametrize(("name", "batches"), EVERY)
def test_a_split_gives_what_one_device_gives(
    name: str, batches: tuple[int, ...]
) -> None:
    case = CASES[name]
    # Keras takes the mean of each output's own loss over batches of unlike sizes: it differs from
    # trace to trace.
    lasts = [SAMPLES] if "outputs" in name else LASTS
    last = lasts[(list(CASES).index(name) + SPLITS.index(batches)) % len(lasts)]
    (found,) = in_turn(case, simulated(batches), [last])
    assert found.weights < case.within
    assert found.logs < max(case.within, 1e-5)


@pytest.mark.parametrize(
    ("name", "split", "lasts"),
    HARDEST,
)
def test_neither_micro_batches_nor_a_last_batch_change_anything(
    name: str, split: tuple[Any, ...], lasts: tuple[int, ...]
) -> None:
    """Neither micro-batches nor a last batch of any size change anything.

    A last batch of fewer samples than devices changes nothing either.

    All devices then have the whole of it, and one counts it.
    """
    for found in in_turn(CASES[name], simulated(*split), lasts):
        assert found.weights < 1e-5
        assert found.logs < 1e-5
