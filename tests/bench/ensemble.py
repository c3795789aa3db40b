"""How long an ensemble's models predict at the same time, beside one device after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

PAIR = str(Path(__file__).parents[2] / "configs" / "quick-pair.toml")
_TIMES = 5


def main() -> Iterator[str]:
    """Three public models on the simulated pair; what each device does alone is timed in turns with both."""
    os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "-1", "2"
    import tensorflow as tf

    import gpubalance

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from keras import applications

    how = {"weights": None, "input_shape": (32, 32, 3), "classes": 10}
    models = [applications.MobileNet(alpha=alpha, **how) for alpha in (0.25, 0.25, 0.5)]
    x = np.random.default_rng(0).normal(size=(1024, 32, 32, 3)).astype("float32")
    ensemble = gpubalance.Ensemble(models, gpus=[0, 1], simulate=PAIR)
    own = [model.predict(x, verbose=0) for model in models]
    off = max(float(abs(one - its).max()) for one, its in zip(ensemble.predict(x), own, strict=True))
    placement, ratios = ensemble.placement, []
    alone = []
    for device in sorted(set(placement)):
        its = [model for model, on in zip(models, placement, strict=True) if on == device]
        alone.append(gpubalance.Ensemble(its, gpus=[device], simulate=PAIR))
        alone[-1].predict(x)  # which places them
    for _ in range(_TIMES):
        began = time.perf_counter()
        for one in alone:
            one.predict(x)
        after = time.perf_counter() - began
        began = time.perf_counter()
        ensemble.predict(x)
        ratios.append((time.perf_counter() - began) / after)
    found = ", ".join(ensemble.devices[device].label for device in placement)
    yield f"three MobileNets on {found}: at once {np.median(ratios):.3f} of one device after the other, {_TIMES} times"
    yield f"the largest difference from a model's own predict: {off:.1e}"
