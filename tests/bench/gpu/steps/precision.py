"""What fraction of a matrix product's FLOP/s a training step reaches, in each precision, with and without XLA.

NVML gives a card's peak in float32 only, so the yardstick is the device itself: square matrix products in the same
precision.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterator
from typing import Any

from gpubalance.devices.health import peak_flops
from gpubalance.numbers.stats import median
from gpubalance.settings.choices import Precision
from gpubalance.settings.requests import Settings
from gpubalance.settings.shares import Shares
from tests.bench.gpu.place import Place, StepFailed
from tests.bench.gpu.steps import Figure

# Unmixed precisions come first, as a mixed policy stays in the process for good.
_PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "mixed_float16", "mixed_bfloat16")
_REHEARSED: tuple[Precision, ...] = ("mixed_bfloat16",)
_BATCH, _REHEARSED_BATCH = 512, 8
_SIDE, _REHEARSED_SIDE = 8192, 256
_PRODUCTS = 10


def figures(place: Place) -> Iterator[Figure]:
    """A figure for each setting. Raises StepFailed at the end if a setting does not work here."""
    failed = []
    for precision in _REHEARSED if place.rehearsed else _PRECISIONS:
        for xla in (False, True):
            name = precision + (" with XLA" if xla else "")
            try:
                yield _measured(place, name, Settings(model=place.model, precision=precision, xla=xla))
            except Exception as error:  # noqa: BLE001  (a missing compiler must not cost the other settings)
                traceback.print_exc()
                failed.append(f"{name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:150]}")
            gc.collect()  # frees the model's memory
    if failed:
        raise StepFailed("; ".join(failed))


def _measured(place: Place, name: str, settings: Settings) -> Figure:
    batch, side = (_REHEARSED_BATCH, _REHEARSED_SIDE) if place.rehearsed else (_BATCH, _SIDE)
    seconds = 0.1 if place.rehearsed else 1.5
    session = place.session(settings)
    # A training step counts as three forward passes, as in the program's own MFU.
    per_sample = 3 * (session.step_flops() or 0.0)
    timings = list(session.measure(Shares((batch,)), seconds=seconds, at_least=3, steps_per_timing=5, stamped=False))
    rate = batch / median([one.seconds / one.steps for one in timings])
    reached, flops = matrix_flops(settings.precision, side), rate * per_sample
    nvml = place.cards and peak_flops(place.cards[0].uuid, settings.precision)
    found = {"samples_per_s": rate, "flops_per_s": flops, "matrix_flops_per_s": reached, "nvml_peak": nvml or None}
    told = f"{name}: {rate:.0f} samples/s, {_tera(flops)} of {_tera(reached)} TFLOP/s ({flops / reached:.0%})"
    return Figure(name, found, told + (f", MFU {flops / nvml:.0%}" if nvml else ""))


def _tera(flops: float) -> str:
    return f"{flops / 1e12:.3g}"


def matrix_flops(precision: Precision, side: int) -> float:
    """FLOP/s of products of two square matrices, with the present settings of this process's TensorFlow."""
    import tensorflow as tf

    kind = {"mixed_float16": tf.float16, "mixed_bfloat16": tf.bfloat16}.get(precision, tf.float32)
    a, b = (tf.cast(tf.random.normal((side, side), stddev=side**-0.5), kind) for _ in range(2))

    @tf.function
    def multiply(x: Any, y: Any) -> Any:
        for _ in range(_PRODUCTS):
            x = tf.matmul(x, y)
        return tf.reduce_sum(tf.cast(x, tf.float32))

    def timed() -> float:
        began = time.perf_counter()
        multiply(a, b).numpy()
        return time.perf_counter() - began

    timed()
    return float(2 * side**3 * _PRODUCTS / median([timed() for _ in range(5)]))
