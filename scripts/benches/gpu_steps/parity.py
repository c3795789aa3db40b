"""Whether the parity check says the same of a model on a GPU as on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from scripts.benches.gpu_steps.place import Figure, Place
from tests.support.as_worker import show

_SAMPLES = 16
_REHEARSED = 2  # models of each kind
_ENDS_S = 3.0  # before the step's time is over, so that what was found is told
Tried = tuple[Callable[[], Any], tuple[Any, ...]]  # makes a model, and its samples


def figures(place: Place) -> Iterator[Figure]:
    """The models with what differs, of each kind.

    Each kind has a process of its own, as it is tracing that takes long.
    """
    kinds = {
        "told of": _told,
        "exact": _exact,
        "large": _small if place.rehearsed else _large,
    }
    with ProcessPoolExecutor(len(kinds), mp_context=get_context("spawn")) as pool:
        compared = [
            pool.submit(_compared, place, kind, models)
            for kind, models in kinds.items()
        ]
        for found in as_completed(compared):
            yield found.result()


def _told() -> Mapping[str, Tried]:
    from tests.training.samples import numbers
    from tests.training.told import TOLD

    return {
        name: (partial(make, *given), numbers(_SAMPLES))
        for name, (make, *given, _) in TOLD.items()
    }


def _exact() -> Mapping[str, Tried]:
    from tests.training.cases import CASES

    return {name: (case.make, case.data(_SAMPLES)) for name, case in CASES.items()}


def _large() -> Mapping[str, Tried]:
    return {"ResNet50": (_resnet, _images(64, 3))}


def _small() -> Mapping[str, Tried]:
    from scripts.benches.gpu_steps.exact import classifier

    return {"a small classifier": (classifier, _images(28, 1))}


def _compared(
    place: Place, kind: str, models_of: Callable[[], Mapping[str, Tried]]
) -> Figure:
    """What differs of these models."""
    devices = place.devices(1)
    show(devices)
    from gpubalance.engine.runtime import use_devices

    (device,) = use_devices(devices)
    models = list(models_of().items())
    differ: dict[str, Any] = {}
    done: list[str] = []
    for name, (make, samples) in models[: _REHEARSED if place.rehearsed else None]:
        if place.left_s < _ENDS_S:
            break
        on_cpu, on_device = _said(make, samples, ("CPU:0", device))
        done.append(name)
        if on_cpu != on_device:
            differ[name] = {"CPU": on_cpu, "device": on_device}
    found = f"not alike: {', '.join(differ)}" if differ else "all alike"
    return Figure(
        kind,
        {"done": done, "differ": differ},
        f"{kind}, {len(done)} of {len(models)} models: {found}",
    )


def _said(
    make: Callable[[], Any], samples: tuple[Any, ...], devices: tuple[str, ...]
) -> list[list[str]]:
    """What the check says of the model on each device, with the same weights."""
    import keras
    import tensorflow as tf

    from gpubalance.engine.step import built, parity

    weights = None
    said = []
    for device in devices:
        keras.utils.clear_session()  # so that names are numbered alike
        keras.utils.set_random_seed(1)
        with tf.device(device):
            model = make()
            batch = tf.nest.map_structure(tf.constant, samples)
            built.build(model, tf.distribute.get_strategy(), batch, trains=True)
            weights = weights or model.get_weights()
            model.set_weights(weights)
            found = parity.check(model, batch, device)
        said.append(
            [*found.warned, *([found.refused.message] if found.refused else [])]
        )
    return said


def _resnet() -> Any:
    import keras

    model = keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=10
    )
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def _images(size: int, channels: int) -> tuple[Any, ...]:
    random = np.random.default_rng(3)
    return random.random((_SAMPLES, size, size, channels), np.float32), random.integers(
        0, 10, _SAMPLES
    )
