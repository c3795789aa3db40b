"""Whether the parity check says the same of a model on a GPU as on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.bench.gpu.place import Place, show
from tests.bench.gpu.steps import Figure

_SAMPLES = 16
_REHEARSED = 2  # models of each kind
_ENDS_S = 3.0  # before the step's time is over, so that what was found is told
Tried = tuple[Callable[[], Any], tuple[Any, ...]]


def figures(place: Place) -> Iterator[Figure]:
    """The models with what differs, of each kind."""
    devices = place.devices(1)
    show(devices)
    from gpubalance.engine.runtime import use_devices
    from tests.training.cases import CASES
    from tests.training.samples import numbers
    from tests.training.told import TOLD

    (name,) = use_devices(devices)
    samples = numbers(_SAMPLES)
    kinds: dict[str, dict[str, Tried]] = {
        "that are told of": {what: (partial(make, *given), samples) for what, (make, *given, _) in TOLD.items()},
        "of Keras' own": {"ResNet50": (_resnet, _images())},
        "that are exact": {what: (case.make, case.data(_SAMPLES)) for what, case in CASES.items()},
    }
    for kind, models in kinds.items():
        differ, done = {}, 0
        for what, (make, given) in list(models.items())[: _REHEARSED if place.rehearsed else None]:
            if place.left_s < _ENDS_S:
                break
            on_cpu, on_device = _said(make, given, ("CPU:0", name))
            done += 1
            if on_cpu != on_device:
                differ[what] = {"CPU": on_cpu, "device": on_device}
        found = f"not alike for {', '.join(differ)}" if differ else "all alike"
        yield Figure(kind, differ, f"{done} of {len(models)} models {kind}: {found}")


def _said(make: Callable[[], Any], samples: tuple[Any, ...], devices: tuple[str, ...]) -> list[list[str]]:
    """What the check says of the model on each device, with the same weights."""
    import keras
    import tensorflow as tf

    from gpubalance.engine.step import built, parity

    weights, said = None, []
    for device in devices:
        keras.utils.clear_session()  # so that names are numbered alike
        keras.utils.set_random_seed(1)
        with tf.device(device):
            model, batch = make(), tf.nest.map_structure(tf.constant, samples)
            built.build(model, tf.distribute.get_strategy(), batch, trains=True)
            weights = weights or model.get_weights()
            model.set_weights(weights)
            found = parity.check(model, batch, device)
        said.append([*found.warned, *([found.refused.message] if found.refused else [])])
    return said


def _resnet() -> Any:
    import keras

    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def _images() -> tuple[Any, ...]:
    random = np.random.default_rng(3)
    return random.random((_SAMPLES, 64, 64, 3), np.float32), random.integers(0, 10, _SAMPLES)
