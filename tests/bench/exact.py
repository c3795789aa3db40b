"""How far training with a split is from one device's, case by case, beside Keras' own `fit` at an even split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tests.training.cases import CASES, SAMPLES, Alone, Case, Differences, alone, compared, simulated

_SPLITS = ((1, 1, 98), (70, 30), (99, 1))
_LASTS = (80, 70, 40, 5, 2, 1)


def main() -> Iterator[str]:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    simulated(_SPLITS[0]).scope()  # the widest sets this process's devices up, before one device is used alone
    yield "largest difference from one device after 3 epochs: weights, logged losses and metrics"
    for name, case in CASES.items():
        lasts = (SAMPLES,) if "outputs" in name else _LASTS
        one_device = [alone(case, last) for last in lasts]
        found = [_of_split(case, batches, expected) for batches in _SPLITS for expected in one_device]
        yield f"{name}: {_worst(found)}; Keras' own fit at 50/50: {_keras(case, one_device[0])}"


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
    except Exception as error:  # noqa: BLE001  (whatever Keras raises is the answer)
        return f"raises {type(error).__name__}"


def _fit(model: Any, *data: Any, **options: Any) -> Any:
    return model.fit(*data, batch_size=SAMPLES, **options)
