"""Several trained models that predict at the same time, each on one of unlike devices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from gpubalance.errors import BadInput, NothingFits
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.ensemble import MOST_TRIED, Placement, Trained, place_models
from gpubalance.text import clean
from gpubalance.training.device_split import Gpus, Simulate, machine_for
from gpubalance.training.distribute import copied

_BATCH = 32  # Keras' own
_TIMED = 3  # predictions
_CALL = "gpubalance.Ensemble([model, other], gpus=[0, 1])"


class Ensemble:
    """Trained Keras models that predict at the same time, each on one of the devices.

    Which one is where is decided by the first batch that they get, and again by one that is larger
    than those before: each model's time on each device is measured, and what it takes there of the
    memory. The device that ends last ends as soon as in any other placement, exactly for up to some
    ten models. `placement` has for each model the number of its device among `devices`.
    """

    def __init__(
        self,
        models: Sequence[Any],
        gpus: Gpus = None,
        *,
        simulate: Simulate = None,
        time_scale: float = 1.0,
    ) -> None:
        """`models` are Keras models or `.keras` files, which are loaded where they predict.

        The others are as for `Split`. Raises BadInput for what is no model, and EnvironmentFault if
        TensorFlow was used before without these devices, as it is by a model that was built: then
        make the ensemble of files.
        """
        from gpubalance.engine.replicas import take_names

        if isinstance(models, str) or not isinstance(models, Iterable):
            raise BadInput(
                "an ensemble takes a list of models or files, and got a value of type "
                f"{type(models).__name__}",
                remedy=_CALL,
            )
        self.devices = machine_for(gpus, simulate, time_scale=time_scale)[1]
        self.placement: tuple[int, ...] = ()
        self._names = take_names(self.devices)
        self._models = list(map(_model, models))
        self._is_file = [isinstance(model, str | Path) for model in models]
        self._there: list[Any] = []  # the models where they are placed
        self._size = 0  # samples of the batch that decided it
        if not self._models:
            raise BadInput("an ensemble needs at least one model", remedy=_CALL)

    def predict(
        self,
        data: Any,
        *,
        mean: bool = False,
        batch_size: int | None = None,
        steps: int | None = None,
    ) -> Any:
        """Each model's outputs, in the models' order, or with `mean` their mean.

        They are what the model's own `predict` gives there. `data` is what Keras' `predict` takes;
        of a Dataset or PyDataset each model goes through all. Raises BadInput for a generator,
        which ends with the first, for data without samples and for a mean of outputs that differ in
        shape; NothingFits, before anything predicts, for a model that no device holds, and if they
        do not fit together or no way was found in which they do.
        """
        import keras

        if hasattr(data, "__next__"):
            raise BadInput(
                "a generator would be exhausted after the first model",
                remedy="give arrays, a PyDataset or a Dataset",
            )
        batch = _first_batch(data, batch_size or _BATCH)
        size = 0 if batch is None else len(keras.tree.flatten(batch)[0])
        if not size:
            raise BadInput("the data has no samples", remedy="give at least one")
        if size > self._size:
            self._place(batch, size)
        options = {"batch_size": batch_size, "steps": steps, "verbose": 0}
        outputs: dict[int, Any] = {}

        def work(device: int) -> None:
            for number, place in enumerate(self.placement):
                if place == device:
                    outputs[number] = self._predicted(
                        number, device, data, options, size
                    )

        used = sorted(set(self.placement))
        with ThreadPoolExecutor(len(used)) as threads:
            list(threads.map(work, used))
        each = [outputs[number] for number in range(len(self._models))]
        return _mean(each) if mean else each

    def _predicted(
        self, number: int, device: int, data: Any, options: dict[str, Any], size: int
    ) -> Any:
        import keras
        import tensorflow as tf

        from gpubalance.engine.pace import sleep_until

        there = self._there[number]
        if there is not self._models[number] and not self._is_file[number]:
            # The user may have trained the model since it was copied. Not by set_weights, which
            # takes each weight over the host.
            pairs = zip(there.weights, self._models[number].weights, strict=True)
            for copy, weight in pairs:
                copy.assign(tf.convert_to_tensor(weight.value))
        began_s = time.perf_counter()
        with tf.device(self._names[device]):
            outputs = there.predict(data, **options)
        sleep_until(
            began_s + self._paced_s(device, len(keras.tree.flatten(outputs)[0]), size)
        )
        return outputs

    def _paced_s(self, device: int, samples: int, size: int) -> float:
        """What a simulated device takes for samples in batches of that size; 0 on others."""
        profile = self.devices[device].profile
        if profile is None:
            return 0.0
        return profile.compute_s(samples, size)

    def _place(self, batch: Any, size: int) -> None:
        """Measures the models and decides. Raises NothingFits."""
        self._there = []
        self.placement = ()
        self._size = 0
        limits = self._limits()
        trained: list[Trained] = []
        by_kind: dict[object, Trained] = {}
        for number, model in enumerate(self._models):
            kind = _kind(model)
            held = self._held(number)
            if kind not in by_kind:
                by_kind[kind] = self._measured(number, batch, size, held, limits)
            trained.append(by_kind[kind]._replace(held=held))
            self._check(number, trained[-1], limits)
        placement = place_models(trained, limits)
        if placement.devices is None:
            raise _not_placed(placement)
        self._there = [
            self._on(number, device) for number, device in enumerate(placement.devices)
        ]
        self.placement = placement.devices
        self._size = size

    def _limits(self) -> list[int | None]:
        """The bytes of each device that nothing takes yet; None without a limit."""
        from gpubalance.engine.memory import memory_bytes, memory_limits_bytes

        limits = list(memory_limits_bytes(self.devices, self._names))
        for device, name in enumerate(self._names):
            limit = limits[device]
            if limit is not None and name.startswith("GPU"):
                limits[device] = max(0, limit - (memory_bytes(name, "current") or 0))
        return limits

    def _held(self, number: int) -> list[int]:
        """The bytes that a model's weights will take on each device; none on a GPU with them."""
        weights = sum(weight.nbytes for weight in self._models[number].get_weights())
        held = []
        for place, device in enumerate(self.devices):
            if not device.simulated and self._is_there(number, place):
                held.append(0)
            else:
                held.append(weights)
        return held

    def _check(self, number: int, model: Trained, limits: Sequence[int | None]) -> None:
        """Raises NothingFits for a model that no device holds."""
        needs = []
        for device, limit in enumerate(limits):
            need = model.held[device] + model.working[device]
            if model.times_s[device] is not None and (limit is None or need <= limit):
                return
            label = self.devices[device].label
            needs.append(f"{format_bytes(need)} of {format_bytes(limit)} on {label}")
        raise NothingFits(
            f"the model {self._models[number].name} (number {number}) fits on no device: it needs "
            f"{', '.join(needs)}",
            remedy="give a smaller batch_size",
        )

    def _measured(
        self,
        number: int,
        batch: Any,
        size: int,
        held: Sequence[int],
        limits: Sequence[int | None],
    ) -> Trained:
        """The time of a batch on each device that may hold it, and what it takes beside weights."""
        import tensorflow as tf

        from gpubalance.engine.memory import memory_bytes, reset_memory_peak
        from gpubalance.training.memory import ran_out

        times_s: list[float | None] = [None] * len(limits)
        working = []
        for place in self.devices:
            per_sample = place.profile.memory_per_sample if place.profile else 0
            working.append(size * per_sample)
        for device, name in enumerate(self._names):
            limit = limits[device]
            if limit is not None and held[device] + working[device] > limit:
                continue
            try:
                model = self._on(number, device)
                reset_memory_peak(name)
                before = memory_bytes(name, "current") or 0
                with tf.device(name):
                    took_s = [_seconds(model, batch) for _ in range(1 + _TIMED)]
            except tf.errors.OpError as error:
                if ran_out(error):
                    continue
                raise
            if name.startswith("GPU"):
                working[device] = (memory_bytes(name, "peak") or 0) - before
            times_s[device] = max(median(took_s[1:]), self._paced_s(device, size, size))
        return Trained(times_s, held, working)

    def _on(self, number: int, device: int) -> Any:
        """The model on that device: itself if it is there, else a copy."""
        import tensorflow as tf

        model = self._models[number]
        if self._is_there(number, device):
            return model
        return copied(model, tf.device(self._names[device]), compiled=False)

    def _is_there(self, number: int, device: int) -> bool:
        end = f"device:{self._names[device]}"
        variables = self._models[number].variables
        return all(variable.value.device.endswith(end) for variable in variables)


def _kind(model: Any) -> object:
    """Equal for models with equal layers and weight shapes; the model's id if one has no config.

    Strides, pooling and precision do not show in layer types and weight shapes, but in configs.
    """
    layers = list(model._flatten_layers())
    # Keras numbers names within a process, so a config names another layer, or an operation such
    # as `add_1`, by its place here.
    places: dict[str, int] = {}
    for layer in layers:
        for named in (layer, *getattr(layer, "operations", ())):
            places.setdefault(named.name, len(places))
    try:
        configs = str(_comparable([layer.get_config() for layer in layers], places))
    except Exception:  # noqa: BLE001  (whatever a user's `get_config` raises)
        return id(model)
    shapes = tuple(weight.shape for weight in model.weights)
    return tuple(map(type, layers)), shapes, configs


def _comparable(config: Any, places: dict[str, int]) -> Any:
    """A config without seeds, and with each layer's name replaced by its place."""
    if isinstance(config, dict):
        return {
            _comparable(key, places): _comparable(value, places)
            for key, value in config.items()
            if key != "seed"
        }
    if isinstance(config, list | tuple):
        return [_comparable(value, places) for value in config]
    return places.get(config, config) if isinstance(config, str) else config


def _not_placed(placement: Placement) -> NothingFits:
    """The error for models that do not fit together, or for which no way was found to."""
    if placement.tried_all:
        return NothingFits(
            "the models do not fit on the devices together",
            remedy="leave some of them out",
        )
    return NothingFits(
        "no placement was found that fits all models. The search stopped after "
        f"{MOST_TRIED:,} steps, so one may exist",
        remedy="leave some of the models out, or give a smaller batch_size",
    )


def _mean(outputs: Sequence[Any]) -> Any:
    import keras

    shapes = set()
    for output in outputs:
        shapes.add(str(keras.tree.map_structure(lambda array: array.shape, output)))
    if len(shapes) > 1:
        raise BadInput(
            "the models' outputs differ in shape, so they have no mean",
            remedy="leave mean= out",
        )
    return keras.tree.map_structure(lambda *arrays: sum(arrays) / len(arrays), *outputs)


def _model(model: Any) -> Any:
    """The model, or the one in that file, in the host's memory. Raises BadInput."""
    import keras
    import tensorflow as tf

    if isinstance(model, str | Path):
        try:
            with tf.device("CPU:0"):
                return keras.saving.load_model(model, compile=False)
        except (OSError, ValueError, TypeError) as error:
            raise BadInput(
                f"{model} can't be loaded: {clean(str(error), 300)}",
                remedy="give a file that model.save('model.keras') wrote",
            ) from error
    if not isinstance(model, keras.Model):
        raise BadInput(
            "an ensemble takes Keras models and files, and got a value of type "
            f"{type(model).__name__} among them",
            remedy=_CALL,
        )
    return model


def _first_batch(data: Any, size: int) -> Any:
    """The first batch of the data's inputs; None if a Dataset has none."""
    import keras

    if isinstance(data, keras.utils.PyDataset):
        return keras.utils.unpack_x_y_sample_weight(data[0])[0]
    if hasattr(data, "element_spec"):
        return keras.utils.unpack_x_y_sample_weight(next(iter(data), None))[0]
    return keras.tree.map_structure(lambda array: array[:size], data)


def _seconds(model: Any, batch: Any) -> float:
    import keras

    from gpubalance.engine.replacing import Method, acting

    # Else a model of a split's scope says that each of its devices gets the whole batch
    method = Method.of_all(keras.Model, "predict_on_batch")
    with acting({method: lambda keras_own, *arguments: keras_own(*arguments)}):
        began_s = time.perf_counter()
        model.predict_on_batch(batch)
        return time.perf_counter() - began_s
