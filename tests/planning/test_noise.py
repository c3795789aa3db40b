"""The noise scale of drawn gradients, and what is not one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gpubalance.planning.noise import (
    Norms,
    efficiency,
    goodput,
    learning_rate_factor,
    noise_scale,
)
from tests.support.cases import cases
from tests.support.known import known as certain

DIMENSIONS = 40


def drawn(
    batches: tuple[int, ...], steps: int, *, signal: float, noise: float, seed: int = 0
) -> list[Norms]:
    """Random steps whose samples' gradients have this `signal` and `noise`.

    Their mean has the length `signal`, and their covariance the trace `noise`².
    """
    draw = np.random.default_rng(seed)
    mean = np.full(DIMENSIONS, signal / math.sqrt(DIMENSIONS))
    each = noise / math.sqrt(DIMENSIONS)
    found = []
    for _ in range(steps):
        total = sum(batches)
        shares = []
        for batch in batches:
            noisy = math.sqrt(batch) * each * draw.standard_normal(DIMENSIONS)
            shares.append((batch * mean + noisy) / total)
        own = sum(float(h @ h) / b for h, b in zip(shares, batches, strict=True))
        whole: Any = np.sum(shares, axis=0)
        found.append(Norms(total, len(batches), own, float(whole @ whole)))
    return found


@cases("batches", (820, 568), (99, 1), (1, 1, 98), (2048, 512, 512, 128))
def test_it_has_no_bias_for_any_split(batches: tuple[int, ...]) -> None:
    """φ = noise²/signal² is a quarter of the global batch, so that chance is small."""
    total = sum(batches)
    steps = drawn(batches, 4000, signal=2.0, noise=math.sqrt(total))
    found = noise_scale(steps)
    assert found.value == pytest.approx(total / 4, rel=0.04)
    low, high = certain(found.ci95)
    assert low < total / 4 < high


@cases(
    "steps, why",
    ([], "0 steps are too few"),
    # One part tells nothing
    (drawn((100,), 50, signal=1, noise=10), "0 steps are too few"),
    # float16 ran over
    ([Norms(100, 2, math.inf, math.nan)] * 9, "0 steps are too few"),
    # It vanishes
    ([Norms(100, 2, 0.0, 0.0)] * 9, "cannot separate the gradient from its noise"),
    (drawn((70, 30), 10, signal=0.01, noise=10), "the gradient from its noise"),
    ([Norms(100, 2, 0.0099, 1.0)] * 9, "the gradients of all parts are alike"),
)
def test_what_is_no_noise_scale_is_told_as_such(steps: list[Norms], why: str) -> None:
    found = noise_scale(steps)
    assert found.value is None
    assert found.ci95 is None
    assert why in found.unknown


def test_any_norms_give_a_noise_scale_above_0_or_none() -> None:
    draw = np.random.default_rng(1)
    for _ in range(2000):
        steps = []
        for _ in range(draw.integers(0, 9)):
            batch, parts = int(draw.integers(1, 4000)), int(draw.integers(1, 5))
            steps.append(Norms(batch, parts, *(10.0 ** draw.uniform(-30, 30, 2))))
        found = noise_scale(steps)
        if found.value is None:
            assert found.unknown
        else:
            low, high = certain(found.ci95)
            assert 0 < found.value < math.inf
            assert 0 <= low <= found.value <= high < math.inf


def test_what_a_batch_is_worth() -> None:
    assert efficiency(1584, 3200) == pytest.approx(0.6689, abs=1e-4)
    assert goodput(50)(100, 0.5) == pytest.approx(100 / 0.5 / (1 + 100 / 50))
    factor = (1 + 3200 / 1584) / (1 + 3200 / 1424)
    assert learning_rate_factor(1584, 1424, 3200) == pytest.approx(factor)
    # Far below the noise scale it is the ratio.
    assert learning_rate_factor(32, 64, 1e9) == pytest.approx(2, abs=1e-4)
