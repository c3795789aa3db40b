"""These tests train in this process, with TensorFlow set up for eight CPU devices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from tests.support.late import keras, tf
from tests.training.cases import has_bfloat16


@pytest.fixture(scope="session", autouse=True)
def _tensorflow(tensorflow: Any) -> None:
    """Before any fixture of a module."""


# What the check found, by what is the same of models that are alike
_FOUND: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def _checked_once(_tensorflow: None) -> Iterator[None]:
    """Fits of models that are alike take what the parity check said of the first of them.

    It takes as long as all else of a small fit. Only what is all Keras' own, and exact, is
    remembered; `told.checked` always checks.
    """
    from gpubalance.engine.step import functions, parity

    def check(model: Any, batch: Any, device: str, **options: Any) -> Any:
        key = _likeness(model, batch, options)
        if key in _FOUND:
            return _FOUND[key]
        result = parity.check(model, batch, device, **options)
        is_exact = result.is_known and not (result.warned or result.refused)
        if key and is_exact:
            _FOUND[key] = result
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functions, "parity", SimpleNamespace(check=check))
        yield


def _likeness(model: Any, batch: Any, options: dict[str, Any]) -> str:
    """What is the same of models whose checks say the same; empty with code of the test's own."""
    from gpubalance.engine.step.state import changing_of

    kinds = [model, *model._flatten_layers(include_self=False)]
    if not all(type(one).__module__.startswith("keras.") for one in kinds):
        return ""
    given = tf.nest.flatten(model._compile_config.config)
    if any(isinstance(one, FunctionType) for one in given):
        return ""
    parts = tf.nest.flatten(batch)
    shapes = [(part.dtype, part.shape) for part in parts if part is not None]
    variables = [*model.trainable_variables, *changing_of(model)]
    paths = [variable.path for variable in variables]
    described = model.get_config(), model.get_compile_config(), shapes, paths, options
    own = (*described, keras.config.floatx())
    text = json.dumps(own, default=repr, sort_keys=True)
    if '"tests.' in text:
        return ""
    return re.sub(r"_\d+\b", "", text)  # Keras numbers the names


def pytest_runtest_setup(item: pytest.Item) -> None:
    needs_bfloat16 = "bfloat16" in item.name or item.get_closest_marker("bfloat16")
    if needs_bfloat16 and not has_bfloat16():
        pytest.skip("oneDNN held to older instructions has no bfloat16")
