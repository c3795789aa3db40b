"""Training with a split is training on one device: weights, logged losses and metrics."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.support.cases import cases
from tests.training.cases import CASES, SAMPLES, Case, in_turn, simulated
from tests.training.models import adamw
from tests.training.own_code import counting
from tests.training.samples import numbers

# Logs that are exact are not warned of.
pytestmark = pytest.mark.filterwarnings(r"error:.* logs\b:UserWarning")
SPLITS = [(70, 30), (99, 1), (1, 1, 98)]
OF_ONE = ((1, 99),)
OF_THREE = ((1, 1, 98),)
IN_PARTS = ((70, 30), (20, 30))
LASTS = [80, 2, 70, 40, 1, 5]
# What two of CASES have, in one training
BOTH = "AdamW, clipped, EMA, and counters"
TOGETHER = {BOTH: Case(partial(counting, adamw), numbers)}
# Each with what is hard for it: micro-batches, or a last batch of fewer samples than devices.
HARDEST: list[tuple[str, tuple[Any, ...], tuple[int, ...]]] = [
    ("synchronised batch norm", OF_THREE, (2,)),
    ("masked sentences", OF_ONE, (2,)),
    ("metrics of many kinds", OF_ONE, (80,)),
    (BOTH, IN_PARTS, (3,)),
    ("embedding of positions, Adam", IN_PARTS, (80,)),
    ("train_step of one's own", IN_PARTS, (80,)),
]
# These have what neither the hardest nor another of them has: each is tried with one split.
# `scripts/bench exact` tries all of CASES.
FULL = (
    *("synchronised batch norm behind a loss", "reduction sum", "float64", "CTC"),
    *("loss function of one's own, class_weight", "embedding, clipped"),
    *("state and losses of one's own layer", "autoencoder without a call"),
    *("several optimizers in one", "train_step that is a function"),
    *("reduction mean_with_sample_weight", "two inputs and outputs"),
    *("train_step of Keras' guide", "steps_per_execution 4"),
)


@pytest.mark.full
@pytest.mark.parametrize("name", FULL)
def test_a_split_gives_what_one_device_gives(name: str) -> None:
    case, number = CASES[name], list(CASES).index(name)
    split = -number % len(SPLITS)
    # Keras takes the mean of each output's own loss over batches of unlike sizes: it differs from
    # trace to trace.
    lasts = [SAMPLES] if "outputs" in name else LASTS
    last = lasts[(number + split) % len(lasts)]
    (found,) = in_turn(case, simulated(SPLITS[split]), [last])
    assert found.weights < case.within
    assert found.logs < max(case.within, 1e-5)


@cases("name, split, lasts", *HARDEST)
def test_neither_micro_batches_nor_a_last_batch_change_anything(
    name: str, split: tuple[Any, ...], lasts: tuple[int, ...]
) -> None:
    """Neither micro-batches nor a last batch of any size change anything.

    A last batch of fewer samples than devices changes nothing either.

    All devices then have the whole of it, and one counts it.
    """
    for found in in_turn({**CASES, **TOGETHER}[name], simulated(*split), lasts):
        assert max(found.weights, found.logs) < 1e-5
