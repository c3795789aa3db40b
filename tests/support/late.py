"""Keras, TensorFlow and what loads them, for modules of tests, imported on first use.

So whoever only collects tests need not wait for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Late:
    """A module."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # as pytest asks all that a module of tests has
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


keras: Any = _Late("keras")
layers: Any = _Late("keras.layers")
losses: Any = _Late("keras.losses")
metrics: Any = _Late("keras.metrics")
ops: Any = _Late("keras.ops")
optimizers: Any = _Late("keras.optimizers")
tf: Any = _Late("tensorflow")
runtime: Any = _Late("gpubalance.engine.runtime")
epoch_times: Any = _Late("gpubalance.training.monitor")
users_errors: Any = _Late("gpubalance.engine.users_errors")
