"""The functions that Keras makes for a model and calls for its batches, and callbacks after each.

A script may wrap such a function, in a `make_train_function` of its own or in a callback. So it is
made when Keras asks for it, and what the script sets in its place is called.

For the callbacks Keras takes the float of each log after every step, whoever looks at it. For that
the host waits for the devices, and then they wait for the next step to be queued: see gpus.md,
"What an H200 showed".
"""

from __future__ import annotations

import time
from collections import UserDict
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import keras

from gpubalance.engine import keras_patches
from gpubalance.engine.keras_patches import is_default, pythonify_logs
from gpubalance.engine.replacing import Replacements
from gpubalance.errors import BadInput

# The progress bar counts steps as often as ever, and shows numbers that are at most so old.
_SHOWN_ANEW_S = 0.5


class CalledFunction:
    """A model's `train_function`, `test_function` or `predict_function` while a split calls Keras.

    `kind` is `train`, `test` or `predict`. `of_the_split` is what is called for batches, and
    `trace_again` is called with the kind when a script makes the function anew by force.
    """

    def __init__(
        self,
        kind: str,
        model: Any,
        of_the_split: Callable[[Any], Any],
        trace_again: Callable[[str], None],
    ) -> None:
        self._kind = kind
        self._name = f"{kind}_function"
        self._model_name = model.name
        self._of_the_split = of_the_split
        self._trace_again = trace_again
        self._value: Any = None  # of the attribute, until Keras asks for the function
        self._calls = 0

    def replacements(self, model: Any) -> Replacements:
        """What takes the place of the model's attribute, and of Keras' method that makes it."""
        make = keras_patches.of_training_method(model, f"make_{self._name}")
        return {keras_patches.of_training(model, self._name): self, make: self._make}

    def __call__(self, _: Any) -> Any:
        """What the model's attribute is."""
        return self._value

    def assign(self, value: Any) -> None:
        """Sets the attribute, as a script does."""
        self._value = None if value is None else partial(self._call_the_scripts, value)

    def _make(self, _original: Any, _model: Any, force: bool = False) -> Any:
        if force:
            self._trace_again(self._kind)
        if force or self._value is None:
            self._value = self._call
        return self._value

    def _call(self, data: Any) -> Any:
        self._calls += 1
        return self._of_the_split(data)

    def _call_the_scripts(self, function: Callable[[Any], Any], data: Any) -> Any:
        before = self._calls
        result = function(data)
        if self._calls == before:
            raise BadInput(
                f"the {self._name} that was set on the model {self._model_name} does "
                f"not call the one from Keras' make_{self._name}, so the split would "
                "not be used",
                remedy="call that function in yours, or move your code to "
                f"{self._kind}_step",
            )
        return result


def set_before_text(model: Any) -> str:
    """The warning of a `train_function` that a script has set before `fit`, or nothing."""
    value = vars(model).get("train_function")
    if value is None or keras_patches.is_keras_own(value):
        return ""
    return (
        f"the train_function that was set on the model {model.name} before fit is not called: set "
        "it in the model's make_train_function, or in a callback"
    )


class LogsReadLate(UserDict[str, Any]):
    """A step's logs, which are read from the devices when somebody looks at one of them."""

    def __init__(self, logs: Mapping[str, Any]) -> None:
        self._logs = logs

    def __len__(self) -> int:
        return len(self._logs)

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        """What Keras gives to callbacks."""
        return pythonify_logs(self._logs)  # type: ignore[no-any-return]


class BatchEnds:
    """What Keras' `CallbackList` does at the end of each batch of one call."""

    def __init__(self) -> None:
        self._shown_s = 0.0  # when the progress bar got numbers

    def of(self, hook: str) -> Callable[..., None]:
        """The method that calls all callbacks' methods of this name."""

        def call_all(
            _: Any, callbacks: Any, batch: int, logs: Mapping[str, Any] | None = None
        ) -> None:
            """In place of the CallbackList's own method; `callbacks` is that list."""
            late: Any = LogsReadLate(logs or {})
            for callback in callbacks.callbacks:
                known = late
                if _is_users(callback, hook):
                    known = late.data
                elif isinstance(callback, keras.callbacks.ProgbarLogger):
                    known = self._for_bar(late)
                getattr(callback, hook)(batch, logs=known)

        return call_all

    def _for_bar(self, logs: LogsReadLate) -> Mapping[str, Any]:
        now_s = time.monotonic()
        if now_s - self._shown_s < _SHOWN_ANEW_S:
            return {}
        self._shown_s = now_s
        return logs


def _is_users(callback: Any, hook: str) -> bool:
    """Whether code of the user's takes logs at a batch's end: it may want a dict of floats."""
    if is_default(callback.on_batch_end) and is_default(getattr(callback, hook)):
        return False
    is_keras = type(callback).__module__.startswith("keras.")
    return not is_keras or isinstance(callback, keras.callbacks.LambdaCallback)
