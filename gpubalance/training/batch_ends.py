"""Keras' callbacks at the end of a batch, for which nobody waits unless one wants to know the logs.

Keras takes the float of each log after every step, whoever looks at it. For that the host waits for
the devices, and then they wait for the next step to be queued: see gpus.md, "What an H200 showed".
"""

from __future__ import annotations

import time
from collections import UserDict
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import keras

from gpubalance.engine.keras_patches import is_default, pythonify_logs

# The progress bar counts steps as often as ever, and shows numbers that are at most so old.
_SHOWN_ANEW_S = 0.5


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
