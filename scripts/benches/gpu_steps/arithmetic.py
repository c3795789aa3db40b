"""Times `split.fit` on one card interleaved with `run`'s own step and with Keras' own `fit`.

It does so in each precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import get_args

from gpubalance.numbers.stats import interval95, median
from gpubalance.settings.choices import Precision
from scripts.benches.gpu_steps.place import Figure, Place
from scripts.benches.turns import Figure as Rate
from scripts.benches.turns import measure_interleaved
from tests.support.as_worker import show

_BATCH = 256
_REHEARSED_BATCH = 16
_PAIRS = 4
_REHEARSED_PAIRS = 1
_PRECISIONS: tuple[Precision, ...] = get_args(Precision)[:2]  # the two of float32


def figures(place: Place) -> Iterator[Figure]:
    """A ratio for each pair of windows. Keras' comes last, as XLA may lack something here."""
    devices = place.devices(1)
    show(devices)
    from gpubalance.engine.models import probe_model
    from gpubalance.settings.batch_split import BatchSplit
    from gpubalance.settings.device import JointProfile
    from gpubalance.training.split import Split
    from scripts.benches.loops import KerasAlone, Ours, SplitFit, small

    batch = _BATCH
    make = probe_model
    model = "probe"
    if place.rehearsed:
        batch = _REHEARSED_BATCH
        make = small
        model = "small"

    rates = {}
    # TF32, TensorFlow's own, is left on for Keras
    for precision in reversed(_PRECISIONS):
        run = Ours((batch,), model=model, devices=devices, precision=precision)
        split = Split.of(devices, BatchSplit((batch,)), JointProfile())
        split.precision = precision
        fit = SplitFit(split, make)
        yield compared(place, f"`run` in {precision}", fit.throughput, run.throughput)
        rates[precision] = run.throughput()
    part = rates["tf32"] / rates["float32"]
    yield Figure("tf32", rates, f"`run` in TF32 over float32: {part:.2f}")
    yield compared(
        place,
        "Keras' `fit` on one card",
        fit.throughput,
        KerasAlone(batch, make).throughput,
    )


def compared(place: Place, name: str, ours: Rate, other: Rate) -> Figure:
    """`split.fit` over another way to train, in turns."""
    pairs = _REHEARSED_PAIRS if place.rehearsed else _PAIRS
    ratios = list(islice(measure_interleaved(ours, other), pairs))
    low, high = interval95(ratios) or (None, None)
    told = f"`split.fit` over {name}: {median(ratios):.3f}" + (
        f" ({low:.3f} to {high:.3f})" if low else ""
    )
    return Figure(name, ratios, f"{told}, {pairs} pairs")
