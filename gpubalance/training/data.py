"""Brings what a user passes to `fit` and the like into global batches; says what that changes."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine import data_faults
from gpubalance.engine.datasets import (
    batch_of,
    has_open_shapes,
    is_batched,
    regrouped,
    sample_count_of,
    static_batch_of,
)
from gpubalance.engine.feed import Dispatched
from gpubalance.errors import BadInput

UNKNOWN_SIZE = int(tf.data.UNKNOWN_CARDINALITY)


# By the argument of the data, the one that says how many of its batches are taken, not trained on.
_COUNTED_BY = {"x": "steps", "validation_data": "validation_steps"}


def bring_into_batches(
    options: dict[str, Any], global_batch: int | None, model: Any
) -> None:
    """Changes a Keras method's arguments so that datasets and arrays come in batches of that size.

    Batches that the user sizes otherwise (by `batch_size`, a PyDataset, a generator) stay as they
    are, and so do those that the user counts by `steps` or `validation_steps`, and all of a split
    by ratios, without a size. That raises BadInput for a dataset of single samples.
    """
    for name, steps in _COUNTED_BY.items():
        data = options.get(name)
        if not isinstance(data, tf.data.Dataset):
            continue
        if not global_batch:
            if not is_batched(data, model):
                raise BadInput(
                    f"the dataset ({name}) gives single samples, but a split by "
                    "ratios divides batches",
                    remedy="batch it: dataset.batch(1000)",
                )
            continue
        is_counted = options.get(steps) is not None
        if is_batched(data, model) and (is_counted or batch_of(data) == global_batch):
            # Of the split's size a smaller batch stays a step of its own, as `repeat` leaves at the
            # end of each epoch: `rebatch` would fill it up from the next one.
            options[name] = data.prefetch(tf.data.AUTOTUNE)
        else:
            options[name] = regrouped(data, model, global_batch)
    if (
        global_batch
        and _is_array(options.get("x"))
        and options.get("batch_size") is None
        and options.get("steps") is None
    ):
        _keep_validation_batches(options)
        options["batch_size"] = global_batch


def _keep_validation_batches(options: dict[str, Any]) -> None:
    """Has `validation_steps` of arrays take what they take without a `batch_size`: all of them."""
    steps = options.get("validation_steps")
    if steps is None or options.get("validation_batch_size") is not None:
        return
    validation = _validation_input(options)
    samples = 0
    if validation is None:
        samples = _size(options["x"])
        # As Keras rounds it
        samples -= int(samples * (1 - (options.get("validation_split") or 0.0)))
    elif _is_array(validation):
        samples = _size(validation)
    if samples > 0:
        options["validation_batch_size"] = -(-samples // steps)


def _validation_input(options: dict[str, Any]) -> Any:
    validation = options.get("validation_data")
    if isinstance(validation, tuple | list):
        return validation[0]
    return validation


def check(options: dict[str, Any], model: Any, *, devices: int, trains: bool) -> None:
    """Raises BadInput without data, and for an endless dataset without a number of steps.

    Also for arrays of text or of unlike lengths and, if it `trains`, for a batch_size with fewer
    samples than devices.
    """
    data = options.get("x")
    size = options.get("batch_size")
    if isinstance(data, keras.Model):
        raise BadInput(
            "the data (x) is a model", remedy="give arrays, x and y, or a dataset"
        )
    if data is None:
        raise BadInput(
            "there is no data: x is None", remedy="give arrays, x and y, or a dataset"
        )
    _check_arrays(options, model)
    if isinstance(data, tf.data.Dataset):
        steps = "steps_per_epoch" if trains else "steps"
        is_endless = int(data.cardinality()) == tf.data.INFINITE_CARDINALITY
        if is_endless and options.get(steps) is None:
            raise BadInput(
                "the dataset is infinite, so an epoch has no end",
                remedy=f"give {steps}",
            )
    elif trains and size is not None and size < devices:
        raise BadInput(
            f"a batch of {size} has fewer samples than the {devices} devices",
            remedy="use a larger batch_size, or a split over fewer devices",
        )


def _check_arrays(options: dict[str, Any], model: Any) -> None:
    """Raises BadInput for arrays that are text or of unlike lengths, of validation too."""
    names = ["x", "y", "sample_weight"]
    parts = [(name, options.get(name)) for name in names]
    validation = options.get("validation_data")
    of_validation = []
    if isinstance(validation, tuple | list):
        names = [f"{name} of validation_data" for name in names]
        of_validation = list(zip(names, validation, strict=False))
    for arrays in (parts, of_validation):
        if arrays and _is_array(arrays[0][1]):
            inputs, labels = (value for _, value in [*arrays, ("", None)][:2])
            data_faults.refuse_text(model, inputs, labels)
            data_faults.refuse_mismatched_lengths(arrays)


def sizes(options: dict[str, Any]) -> dict[str, int]:
    """The length of a Keras method's data.

    It is an array's samples, a dataset's batches of one size, or UNKNOWN_SIZE.
    """
    return {
        "data": _size(options.get("x")),
        "validation data": _size(_validation_input(options)),
    }


def may_begin_short(options: dict[str, Any]) -> bool:
    """Whether the first batch may be the one that is not full, as `fit` shuffles a PyDataset's."""
    data = options.get("x")
    return isinstance(data, keras.utils.PyDataset) and _size(data) > 1


def epoch_samples(options: dict[str, Any]) -> int | None:
    """The samples of an epoch of a `fit`, None if unknown."""
    data = options.get("x")
    if isinstance(data, tf.data.Dataset):
        return sample_count_of(data)
    if not _is_array(data):
        return None
    # As Keras rounds it
    return int(_size(data) * (1 - (options.get("validation_split") or 0.0)))


def _size(data: Any) -> int:
    if data is None:
        return 0
    if isinstance(data, tf.data.Dataset):
        batches = data.cardinality()
        if batches < 0 or static_batch_of(data):
            return int(batches)
        return UNKNOWN_SIZE
    if not _is_array(data):
        batches = getattr(data, "num_batches", None)
        if batches is None:
            return UNKNOWN_SIZE
        return int(batches)
    arrays = keras.tree.flatten(data)
    if not arrays:
        return UNKNOWN_SIZE
    shape: Any = getattr(arrays[0], "shape", ())
    if not len(shape):
        return UNKNOWN_SIZE
    return int(shape[0])


def _is_array(data: Any) -> bool:
    """Whether the data is arrays, of which Keras makes the batches."""
    if isinstance(data, tf.data.Dataset | keras.utils.PyDataset):
        return False
    return not hasattr(data, "__next__")


def regrouped_text(
    data: Any, model: Any, global_batch: int, steps_per_epoch: int | None
) -> str:
    """The warning about a user's dataset that is brought into other batches; else empty.

    It is empty too if their size is unknown. Batches of open shapes stay as they are.
    """
    if not is_batched(data, model) or has_open_shapes(data, model):
        return ""
    batch = static_batch_of(data) or batch_of(data)
    if batch is None or batch == global_batch:
        return ""
    then = f"an epoch's number of steps is multiplied by {batch}/{global_batch}"
    if steps_per_epoch is not None:
        then = (
            f"steps_per_epoch={steps_per_epoch} now means {steps_per_epoch} steps of "
            f"{global_batch}"
        )
    return (
        f"your batches of {batch} are regrouped into batches of {global_batch}, the "
        f"split's: {then}"
    )


def other_batches_text(
    dispatched: Dispatched,
    global_batch: int,
    *,
    only: int | None,
    rebalances: bool,
    balance: str,
) -> str:
    """The warning about a first step that does not have the split's global batch; else empty.

    `only` are the samples of an epoch, None if their number is unknown; `balance` is the command
    that finds a split.
    """
    taken = dispatched.samples
    shares = dispatched.shares.batches
    if taken == global_batch:
        return ""
    advice = f"leave batch_size out or give batches of {global_batch}"
    if only == taken:
        advice = f"there are only {taken} samples"
    if dispatched.replicated:
        return (
            f"a batch of {taken} has fewer samples than the {len(shares)} devices, so "
            f"each device computes the whole batch: {advice}"
        )
    text = (
        f"this fit takes {taken} samples a step ({'/'.join(map(str, shares))}), not "
        f"the split's {global_batch}: {advice}; {balance} --global-batch {taken} "
        f"--batch-multiple 1 finds the split for {taken}"
    )
    if rebalances:
        text += f". The monitor rebalances only with steps of {global_batch}"
    return text


def not_finite_text(history: dict[str, list[Any]], model: Any) -> str:
    """The warning about a training of the model whose loss became no number; else empty."""
    losses = history.get("loss") or [0.0]
    if math.isfinite(float(losses[-1])):
        return ""
    return (
        f"the loss of the model {model.name} is NaN or infinite: look for NaN or "
        "infinity in the data (keras.callbacks.TerminateOnNaN stops at the first), "
        "otherwise lower the learning rate"
    )
