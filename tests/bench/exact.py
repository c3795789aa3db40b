"""How far training with a split is from one device's, case by case, beside Keras' own `fit` at an even split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tests.training.cases import CASES, SAMPLES, Case, Differences, compared, differences, simulated

_SPLITS = ((70, 30), (99, 1), (1, 1, 98))
_LASTS = (80, 70, 40, 5)


def main() -> Iterator[str]:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    yield "largest difference from one device after 3 epochs: weights, logged losses and metrics"
    for name, case in CASES.items():
        lasts = (SAMPLES,) if "outputs" in name else _LASTS
        # The widest split first: it sets this process's devices up.
        found = [differences(case, simulated(batches), last) for batches in reversed(_SPLITS) for last in lasts]
        yield f"{name}: {_worst(found)}; Keras' own fit at 50/50: {_keras(case, lasts[0])}"


def _worst(found: list[Differences]) -> str:
    return f"{max(one.weights for one in found):.1e}, {max(one.logs for one in found):.1e}"


def _keras(case: Case, last: int) -> str:
    from gpubalance.engine.runtime import build_strategy

    strategy = build_strategy(("CPU:0", "CPU:1"), "auto")
    try:
        return _worst([compared(case, strategy.scope(), _fit, last)])
    except Exception as error:  # noqa: BLE001  (whatever Keras raises is the answer)
        return f"raises {type(error).__name__}"


def _fit(model: Any, *data: Any, **options: Any) -> Any:
    return model.fit(*data, batch_size=SAMPLES, **options)
