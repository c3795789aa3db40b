"""With `steps_per_execution` several steps are one call, and train as they do alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cases import cases, full
from tests.support.late import keras, tf
from tests.training.cases import in_split, largest
from tests.training.models import classifier
from tests.training.samples import numbers

X, Y = numbers(17 * 100 + 40)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each call of a training step's function had."""
    from gpubalance.engine.keras_patches import called_flat

    of_each: list[int] = []

    def counted(function: Any, arguments: Any) -> Any:
        values, _ = arguments
        is_in_a_row = isinstance(values[0][1], tuple)  # else a replica's weights
        of_each.append(len(values) if is_in_a_row else 1)
        return called_flat(function, arguments)

    monkeypatch.setattr("gpubalance.engine.step.functions.called_flat", counted)
    return of_each


def trained(steps: int, every: int = 0, **data: Any) -> tuple[Any, Any, Any]:
    """The model, its history and the monitor after an epoch of so many steps a call of Keras'."""
    keras.utils.set_random_seed(1)
    how = {"steps_per_execution": steps}
    split, model = in_split(classifier("adam", compiled=how))
    monitor = split.monitor(every=every) if every else None
    callbacks = [monitor] if monitor else []
    given = {"x": X, "y": Y, "shuffle": False} | data
    history = split.fit(model, verbose=0, callbacks=callbacks, **given).history
    return model, history, monitor


@cases(
    "every, expected",
    # The first step is tried, and the last batch has fewer samples.
    full(0, [1, 4, 2, 1, 8, 1, 1]),
    # The 6th, 12th and 18th steps are stamped; the first of a trace does not count.
    (6, [1, 4, 1, 1, 1, 2, 1, 1, 4, 1, 1]),
)
def test_steps_in_one_call_train_as_they_do_alone(
    calls: list[int], every: int, expected: list[int]
) -> None:
    model, history, monitor = trained(8, every)
    assert calls == expected
    calls.clear()
    alone, history_alone, monitor_alone = trained(1, every)
    assert calls == [1] * 18
    assert largest(model.get_weights(), alone.get_weights()) < 1e-6
    assert history.keys() == history_alone.keys()
    assert largest(history.values(), history_alone.values()) < 1e-6
    assert int(model.optimizer.iterations) == 18
    if every:
        assert len(monitor.epochs) == len(monitor_alone.epochs) == 1


@cases("mib, expected", (0.5, 8), (1, 8), (2, 4), (8, 1), (9, 1))
def test_batches_in_a_row_take_at_most_16_mib(mib: float, expected: int) -> None:
    """Those of a call, and as much again of the next."""
    from gpubalance.engine.step.several import StepFunction

    batch: Any = SimpleNamespace(values=[tf.zeros(int(mib * 2**18))])
    deferred: Any = None
    assert StepFunction(None, deferred, operations=100).max_for(batch) == expected


def test_large_batches_and_those_of_a_generator_are_trained_one_by_one(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator is asked for no batch before it is needed, and batches in a row take memory."""
    from gpubalance.engine.step import several

    batches = ((X[place : place + 100], Y[place : place + 100]) for place in range(8))
    trained(8, x=batches, y=None, steps_per_epoch=8)
    assert calls == [1] * 8
    calls.clear()
    # Of 100 samples of 6 float32 and an int64, with weights
    monkeypatch.setattr(several, "_MOST_BYTES", 2 * 2 * 3300)
    trained(8)
    assert max(calls) == 2
