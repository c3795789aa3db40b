"""What Keras' own `fit`, `evaluate` and `predict` call for each batch, in place of their functions for one device."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from keras.src.backend.tensorflow.trainer import TFEpochIterator

from gpubalance.engine.step.part import replaced
from gpubalance.training.keras_inside import batches


class KerasFunctions(ABC):
    """A model's train, test and predict functions as it is compiled now. `is_open`: Keras is calling them."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._compiled = _compiled(model)
        self.is_open = False

    def is_of(self, model: Any) -> bool:
        """Whether these functions are for that model."""
        return self._model is model

    def are_of(self, model: Any) -> bool:
        """Whether these functions are for that model as it is compiled now."""
        pairs = zip(self._compiled, _compiled(model), strict=True)
        return self._model is model and all(before is now for before, now in pairs)

    @contextmanager
    def used(self, *, steps: int | None) -> Iterator[None]:
        """Makes Keras' methods of the model call these functions inside the block, for as many steps if a user says.

        Keras handles whole batches there, as on one device.
        """
        own = {"train_function": self.train, "test_function": self.test, "predict_function": self.predict}
        self.is_open = True
        try:
            with (
                replaced(self._model, _distribute_strategy=None, **own),
                replaced(TFEpochIterator, _get_iterator=batches),
                warnings.catch_warnings(),
            ):
                if steps is None:  # a regrouped dataset does not know its length, so Keras warns when it ends
                    warnings.filterwarnings("ignore", message="Your input ran out of data")
                yield
        finally:
            self.is_open = False

    def train(self, iterator: Iterator[Any]) -> Any:
        """Trains `steps_per_execution` steps and returns the last one's logs. Raises StopIteration without data."""
        return self._several(iterator, self._train_on)

    def test(self, iterator: Iterator[Any]) -> Any:
        """Does the same for `evaluate`."""
        return self._several(iterator, self._test_on)

    @abstractmethod
    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""

    @abstractmethod
    def _train_on(self, iterator: Iterator[Any]) -> Any:
        """Trains on the next batch and returns the logs. Raises StopIteration without one."""

    @abstractmethod
    def _test_on(self, iterator: Iterator[Any]) -> Any:
        """Does the same for `evaluate`."""

    def _several(self, iterator: Iterator[Any], step: Callable[[Iterator[Any]], Any]) -> Any:
        logs = None
        for _ in range(self._model.steps_per_execution):
            try:
                logs = step(iterator)
            except StopIteration:
                break
        if logs is None:
            raise StopIteration
        return logs


def arguments_of(
    method: Callable[..., Any], model: Any, arguments: Sequence[Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a model's method, by name."""
    bound = inspect.signature(method).bind(model, *arguments, **options).arguments
    bound.update(bound.pop("kwargs", {}))
    del bound["self"]
    return bound


def _compiled(model: Any) -> list[Any]:
    """The objects that are replaced when the model is compiled again."""
    return [getattr(model, name, None) for name in ("optimizer", "_compile_loss", "_compile_metrics", "run_eagerly")]
