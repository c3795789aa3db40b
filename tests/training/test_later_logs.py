"""Logs of metrics whose states are too large to be summed in each step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import cases, full
from tests.support.late import keras
from tests.training.cases import in_both
from tests.training.samples import numbers

CLASSES = 200  # their confusion matrix has 320 KB
SAMPLES = 240


def counting(dtype: str, *, doubles: bool = False) -> Any:
    """A model that counts pairs of classes, and keeps what each step returned."""
    keras.utils.set_random_seed(4)

    class Kept(keras.Sequential):
        def make_train_function(self, force: bool = False) -> Any:
            self.kept: list[Any] = getattr(self, "kept", [])
            step = super().make_train_function(force)

            def keeping(iterator: Any) -> Any:
                self.kept.append(step(iterator))
                return self.kept[-1]

            if step is not None:
                self.train_function = keeping
            return self.train_function

        def train_step(self, data: Any) -> Any:
            logs = super().train_step(data)
            return logs | {"doubled": 2 * logs["iou"]} if doubles else logs

    model = Kept([keras.Input((6,)), keras.layers.Dense(CLASSES, "softmax")])
    iou = keras.metrics.MeanIoU(CLASSES, sparse_y_pred=False, name="iou", dtype=dtype)
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy", iou])
    return model


@cases("dtype", "int64", full("float32"))
def test_a_large_state_stays_local_and_its_logs_are_those_of_one_device(
    dtype: str,
) -> None:
    split, model, alone = in_both(lambda: counting(dtype))
    x, y = numbers(SAMPLES)
    seen: dict[Any, list[Any]] = {model: [], alone: []}

    def trained(one: Any) -> Any:
        def see(_batch: int, logs: Any) -> None:
            result = float(one.metrics[1].result()["iou"])
            seen[one].append((logs["iou"], logs["accuracy"], result))

        options = {"batch_size": 100, "epochs": 2, "shuffle": False, "verbose": 0}
        see_all = keras.callbacks.LambdaCallback(on_train_batch_end=see)
        return one.fit(x, y, validation_data=(x, y), callbacks=[see_all], **options)

    ours, theirs = (trained(one).history for one in seen)
    assert {"iou", "val_iou", "accuracy"} <= ours.keys()
    for name, values in theirs.items():
        assert ours[name] == pytest.approx(values, abs=1e-6), name
    assert len(seen[model]) == 6
    for own, other in zip(seen[model], seen[alone], strict=True):
        assert own == pytest.approx(other, abs=1e-6)
    # What was kept is read after all steps, and is still that of its own.
    kept = [float(logs["iou"]) for logs in model.kept]
    assert kept == pytest.approx([iou for iou, _, _ in seen[alone]], abs=1e-6)
    (functions,) = split.functions_of(model)
    traced: Any = functions._functions._traced  # type: ignore[attr-defined]
    for _, function in traced.values():
        deferred = function.deferred
        assert [of.path for of in deferred.unsummed] == ["iou/total_confusion_matrix"]
        assert "iou/total_confusion_matrix" not in [of.path for of in deferred.summed]


def test_a_log_that_is_computed_from_such_a_result_is_computed_in_the_step() -> None:
    split, model, alone = in_both(lambda: counting("float32", doubles=True))
    x, y = numbers(100)
    options = {"batch_size": 100, "shuffle": False, "verbose": 0}
    logs, expected = (one.fit(x, y, **options).history for one in (model, alone))
    for name, values in expected.items():
        assert logs[name] == pytest.approx(values, abs=1e-6), name
    (functions,) = split.functions_of(model)
    traced: Any = functions._functions._traced  # type: ignore[attr-defined]
    assert [function.deferred.unsummed for _, function in traced.values()] == [[]]
