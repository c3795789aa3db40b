"""Which batches a step has a function of their own for: those that most of a call's batches equal.

On GPUs a training step with another one copies more. So what came before must not decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpubalance.settings.batch_split import BatchSplit
from tests.support.late import keras
from tests.training.cases import in_split
from tests.training.samples import in_sizes, numbers

X, Y = numbers(250)
SHORT = [True, True, False]  # 100, 100 and 50 samples


def fit(model: Any, split: Any) -> None:
    def change(epoch: int, _: Any) -> None:
        split.shares = BatchSplit((40, 60) if epoch else (70, 30))

    changing = keras.callbacks.LambdaCallback(on_epoch_begin=change)
    how = {"validation_data": (X[:130], Y[:130]), "callbacks": [changing]}
    model.fit(X, Y, epochs=2, verbose=0, **how)


def shuffled(model: Any, _: Any) -> None:
    batches = in_sizes(50, 100, 50, 100)
    model.fit(batches, shuffle=False, verbose=0)


# Each with what it is for, and what is usual of its batches
Call = Callable[..., Any]
CALLS: list[tuple[Call, dict[str, list[bool]]]] = [
    (fit, {"train": 2 * SHORT, "test": 2 * [True, False]}),
    (lambda of, _: of.predict(X[:1], verbose=0), {"predict": [False]}),
    (lambda of, _: of.predict(X, 32, verbose=0), {"predict": [*7 * [True], False]}),
    (lambda of, _: of.evaluate(X, Y, verbose=0), {"test": SHORT}),
    (lambda of, _: of.evaluate(X, Y, 40, verbose=0), {"test": [*6 * [True], False]}),
    (lambda of, _: of.fit(X, Y, 200, verbose=0), {"train": [True, False]}),
    (shuffled, {"train": [True, True, False, True]}),
]


def test_a_call_tells_what_is_usual_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpubalance.engine.step.functions import Functions

    dispatched: dict[str, list[bool]] = {}
    call = Functions._call

    def noting(functions: Any, what: str, batch: Any, kind: Any) -> Any:
        dispatched.setdefault(what, []).append(batch.is_usual)
        return call(functions, what, batch, kind)

    monkeypatch.setattr(Functions, "_call", noting)
    split, model = in_split()
    for order in (CALLS, CALLS[::-1], [*CALLS[1:], CALLS[0]]):
        for one, usual in order:
            dispatched.clear()
            one(model, split)
            assert dispatched == usual
