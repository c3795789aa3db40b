"""A script says how a split's gradients are summed.

All tests of training show that packs change no weight.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpubalance.errors import UsageError
from gpubalance.settings.settings import Summing
from gpubalance.training.split import Split
from tests.support.cases import cases
from tests.support.late import keras
from tests.training.cases import SAMPLES, apart, largest, simulated
from tests.training.models import classifier
from tests.training.samples import numbers


@pytest.mark.usefixtures("tensorflow")
def test_gradients_as_bf16_train_nearly_the_same() -> None:
    x, y = numbers(4 * SAMPLES)
    trained = []
    for summing in (Summing(), Summing(gradients="bf16")):
        split = simulated((70, 30), summing=summing)
        with split.scope():
            keras.utils.set_random_seed(1)
            model = classifier("sgd")()
        split.fit(model, x, y, shuffle=False, verbose=0)
        trained.append(model)
    assert 0 < apart(*trained) < 1e-2


@pytest.mark.usefixtures("tensorflow")
def test_a_model_without_trainable_weights_has_nothing_to_sum() -> None:
    split = simulated((70, 30), summing=Summing())
    with split.scope():
        model = classifier("sgd")()
        model.trainable = False
    before = model.get_weights()
    split.fit(model, *numbers(SAMPLES), verbose=0)
    assert largest(model.get_weights(), before) == 0


@cases(
    "wrong", {"pack_bytes": -1}, {"pack_bytes": "4MiB"}, {"gradients": "fp8"}, ids=str
)
def test_what_is_no_way_to_sum_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"^{name} is "):
        Split([0, 1], [2, 1], simulate=2, **wrong)
