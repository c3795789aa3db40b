"""How long an ensemble's models predict at the same time, beside one device after the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from scripts.benches.turns import ratio_of, seconds
from tests.cli.program import QUICK_PAIR
from tests.support.gpu.parts import logical

_TIMES = 5


def main() -> Iterator[str]:
    """Three public models on the simulated pair.

    What each device does alone is timed interleaved with both.
    """
    from keras import applications

    import gpubalance

    logical("CPU", [None] * 2)

    how = {"weights": None, "input_shape": (32, 32, 3), "classes": 10}
    models = [applications.MobileNet(alpha=alpha, **how) for alpha in (0.25, 0.25, 0.5)]
    x = np.random.default_rng(0).normal(size=(1024, 32, 32, 3)).astype("float32")
    ensemble = gpubalance.Ensemble(models, gpus=[0, 1], simulate=QUICK_PAIR)
    own = [model.predict(x, verbose=0) for model in models]
    off = max(
        abs(one - its).max() for one, its in zip(ensemble.predict(x), own, strict=True)
    )
    placement = ensemble.placement
    alone = []
    for device in sorted(set(placement)):
        its = [
            model for model, on in zip(models, placement, strict=True) if on == device
        ]
        alone.append(gpubalance.Ensemble(its, gpus=[device], simulate=QUICK_PAIR))
    one_by_one = partial(seconds, lambda: [its.predict(x) for its in alone])
    ratio = ratio_of(partial(seconds, lambda: ensemble.predict(x)), one_by_one, _TIMES)
    found = ", ".join(ensemble.devices[device].label for device in placement)
    yield f"three on {found}: at once {ratio:.3f} of one device after the other, {_TIMES} times"
    yield f"the largest difference from a model's own predict: {off:.1e}"
