"""How far training with a split is from one device in each case, beside Keras' own `fit` at an even split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.training.cases import CASES, SAMPLES, Alone, Case, Differences, alone, compared, simulated

_EPOCHS = 3
# Splits, the widest first, with the sizes of their last batch; fewer samples than devices make another kind of step.
_TRIED = {(1, 1, 98): (80, 5, 2, 1), (70, 30): (80, 1), (99, 1): (80, 1)}


def main() -> Iterator[str]:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    simulated(next(iter(_TRIED))).scope()  # the widest sets this process's devices up, before one is used alone
    yield f"largest difference from one device after {_EPOCHS} epochs: weights, logged losses and metrics"
    for name, case in CASES.items():
        yield f"{name}: {_row(name, replace(case, options={'epochs': _EPOCHS, **case.options}))}"


def _row(name: str, case: Case) -> str:
    lasts = {split: (SAMPLES,) if "outputs" in name else tried for split, tried in _TRIED.items()}
    one_device = {last: alone(case, last) for last in sorted(set(sum(lasts.values(), ())), reverse=True)}
    found = [_of_split(case, split, one_device[last]) for split, tried in lasts.items() for last in tried]
    return f"{_worst(found)}; Keras' own fit at 50/50: {_keras(case, next(iter(one_device.values())))}"


def _of_split(case: Case, batches: tuple[int, ...], expected: Alone) -> Differences:
    split = simulated(batches)
    return compared(case, split.scope(), split.fit, expected)


def _worst(found: list[Differences]) -> str:
    return f"{max(one.weights for one in found):.1e}, {max(one.logs for one in found):.1e}"


def _keras(case: Case, expected: Alone) -> str:
    from gpubalance.engine.runtime import build_strategy

    strategy = build_strategy(("CPU:0", "CPU:1"), "auto")
    try:
        return _worst([compared(case, strategy.scope(), _fit, expected)])
    except Exception as error:  # noqa: BLE001  (any error of Keras' is the result)
        return f"raises {type(error).__name__}"


def _fit(model: Any, *data: Any, **options: Any) -> Any:
    return model.fit(*data, batch_size=SAMPLES, **options)
