"""How far training with a split is from one device in each case.

Beside it stands Keras' own `fit` at an even split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpubalance.settings.settings import Summing
from tests.training.cases import (
    CASES,
    SAMPLES,
    Alone,
    Case,
    Differences,
    alone,
    compared,
    fit,
    simulated,
)

_EPOCHS = 3
_SENT_AS_BF16 = ("plain", "Adam", "embedding, Adam")
# Splits, the widest first, with the sizes of their last batch.
# Fewer samples than devices make another kind of step.
_TRIED = {(1, 1, 98): (80, 5, 2, 1), (70, 30): (80, 1), (99, 1): (80, 1)}


def main() -> Iterator[str]:
    # The widest split sets this process's devices up, before one is used alone.
    simulated((1, 1, 98)).scope()
    yield (
        f"largest difference from one device after {_EPOCHS} epochs: weights, logged losses and "
        "metrics"
    )
    for name, case in CASES.items():
        lasts = {
            split: (SAMPLES,) if "outputs" in name else tried
            for split, tried in _TRIED.items()
        }
        case = replace(case, options={"epochs": _EPOCHS, **case.options})
        one = {
            last: alone(case, last)
            for last in sorted(set(sum(lasts.values(), ())), reverse=True)
        }
        of_splits = [
            (simulated(batches), one[last])
            for batches, tried in lasts.items()
            for last in tried
        ]
        found = [
            compared(case, split.scope(), split.fit, expected)
            for split, expected in of_splits
        ]
        yield (
            f"{name}: {_worst(found)}; Keras' own fit at 50/50: "
            f"{_keras(case, next(iter(one.values())))}"
        )
        if name in _SENT_AS_BF16:
            sent = [
                simulated(batches, summing=Summing(gradients="bf16"))
                for batches in _TRIED
            ]
            found = [
                compared(case, split.scope(), split.fit, one[80]) for split in sent
            ]
            yield f"{name}, gradients as bf16: {_worst(found)}"


def _worst(found: list[Differences]) -> str:
    return (
        f"{max(one.weights for one in found):.1e}, {max(one.logs for one in found):.1e}"
    )


def _keras(case: Case, expected: Alone) -> str:
    from gpubalance.engine.replicas import build_strategy

    strategy = build_strategy(("CPU:0", "CPU:1"), "auto")
    try:
        return _worst([compared(case, strategy.scope(), fit, expected)])
    except Exception as error:  # noqa: BLE001  (any error of Keras' is the result)
        return f"raises {type(error).__name__}"
