"""What a split must train as one device does, and the comparison of both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpubalance.devices.profile import simulated_devices
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.settings import Summing
from gpubalance.training.split import Split
from tests.engine.steps import IN_SMALL_PACKS
from tests.support.late import keras, optimizers
from tests.training.models import (
    adamw,
    classifier,
    cross_entropy,
    ctc,
    embedding,
    in_float64,
    loss_scaled,
    masked,
    normalised,
    normalised_behind_a_loss,
    positions,
    several_optimizers,
    small_sgd,
    two_in_two_out,
)
from tests.training.own_code import (
    counting,
    guided,
    keeping,
    many_metrics,
    mean_of_activities,
    own_loss,
    sampling,
    traced,
)
from tests.training.samples import (
    numbers,
    of_two,
    one_hot,
    sentences,
    spoken,
    weighted,
    words,
)

SAMPLES = 100  # in a global batch
# Of all strategies that are Keras' own here: TensorFlow numbers the groups of each from 1, and a
# group of other devices with the same number can't sum any more.
KERAS_OWN = ["CPU:6", "CPU:7"]
EPOCHS = 2


@dataclass(frozen=True)
class Case:
    """A case: `make` builds and compiles a model; `options` are arguments of fit.

    One device trains it eagerly, which gives the same numbers without tracing for a few steps. But
    the loss of one output of several is then a mean over samples. In a traced step Keras does not
    know their number, and logs a mean over batches.
    """

    make: Callable[[], Any]
    data: Callable[[int], tuple[Any, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    within: float = 1e-5
    eagerly: bool = True


ALIKE = {"class_weight": {0: 1.0, 1: 1.0, 2: 1.0}}
UNLIKE = {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0}}
L2 = {"layers": {"weights": "l2"}}
OF_WEIGHTS = cross_entropy("mean_with_sample_weight")
OWN_FUNCTION, OF_A_SUM = own_loss("function"), own_loss("function of a sum")
FOUR = {"steps_per_execution": 4}
VALIDATED = {"validation_data": numbers(SAMPLES)}
VALIDATED_BY_170 = {"validation_data": numbers(170)}


def of_type(dtype: str, optimizer: Any = "sgd") -> Any:
    return classifier(optimizer, layers={"dtype": dtype})


def clipped_sgd() -> Any:
    return optimizers.SGD(0.5, clipnorm=0.01)


CASES: dict[str, Case] = {
    "plain": Case(classifier(), numbers),
    "Adam": Case(classifier("adam"), numbers),
    "AdamW, clipped, EMA": Case(classifier(adamw), numbers),
    "L2": Case(classifier("adam", **L2), numbers),
    "activity regulariser": Case(classifier(layers={"activity": "l2"}), numbers),
    "synchronised batch norm": Case(normalised, numbers),
    "synchronised batch norm behind a loss": Case(normalised_behind_a_loss, numbers),
    "sample_weight": Case(classifier("adam"), weighted),
    "class_weight": Case(classifier(), numbers, UNLIKE),
    "reduction sum": Case(classifier(small_sgd, cross_entropy("sum")), numbers),
    "reduction mean": Case(classifier("sgd", cross_entropy("mean")), weighted),
    "reduction mean_with_sample_weight": Case(classifier("adam", OF_WEIGHTS), weighted),
    "two inputs and outputs": Case(two_in_two_out, of_two),
    "masked sentences": Case(masked, sentences),
    "float64": Case(in_float64, weighted, within=5e-9),
    "float64 in one layer": Case(of_type("float64", "adam"), numbers),
    "float16 in one layer": Case(of_type("float16"), numbers, within=2e-3),
    "bfloat16 in one layer": Case(of_type("bfloat16"), numbers, within=2e-2),
    "mixed_bfloat16": Case(of_type("mixed_bfloat16", "adam"), numbers, within=2e-2),
    "mixed_float16": Case(of_type("mixed_float16", loss_scaled), numbers, within=2e-3),
    "compute_loss of one's own": Case(own_loss("compute_loss"), numbers),
    "train_step of one's own": Case(own_loss("train_step"), numbers),
    "loss function of one's own": Case(own_loss("function"), numbers),
    "loss function of one's own, class_weight": Case(OWN_FUNCTION, numbers, ALIKE),
    "loss function of one's own, of Keras' sum": Case(OF_A_SUM, numbers),
    "reduction none": Case(classifier(small_sgd, cross_entropy(None)), numbers),
    "embedding, Adam": Case(embedding("adam"), words),
    "embedding of positions, Adam": Case(positions, words),
    "embedding, RMSprop": Case(embedding("rmsprop"), words),
    "embedding in bfloat16": Case(embedding("sgd", "bfloat16"), words, within=2e-2),
    "CTC": Case(ctc, spoken),
    "embedding, clipped": Case(embedding(clipped_sgd), words),
    "embedding, Adagrad": Case(embedding("adagrad"), words),
    "metrics of many kinds": Case(many_metrics, one_hot),
    "state and losses of one's own layer": Case(keeping, numbers),
    "counters of one's own layer": Case(counting, numbers),
    "activity regulariser of one's own, a mean": Case(mean_of_activities, numbers),
    "autoencoder without a call": Case(sampling, numbers, VALIDATED),
    "several optimizers in one": Case(several_optimizers, numbers),
    "steps_per_execution 4": Case(classifier("adam", compiled=FOUR), numbers),
    "train_step of Keras' guide": Case(guided, numbers, VALIDATED),
    "train_step that is a function": Case(traced, numbers, VALIDATED_BY_170),
}


def has_bfloat16() -> bool:
    """Whether TensorFlow computes in bfloat16 here.

    oneDNN that may not use newer instructions can't, and TensorFlow calls it all the same.
    """
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        return True
    return os.environ.get("ONEDNN_MAX_CPU_ISA") not in ("SSE41", "AVX", "AVX2")


def simulated(
    batches: Sequence[int],
    micro_batches: Sequence[int] | None = None,
    summing: Summing = IN_SMALL_PACKS,
) -> Split:
    """A split over plain CPU devices of this process."""
    devices, joint = simulated_devices(str(len(batches)))
    shares = BatchSplit(tuple(batches), tuple(micro_batches or ()))
    return Split.of(devices, shares, joint, summing)


def in_split(
    make: Any = None,
    *given: Any,
    batches: Any = (70, 30),
    micro_batches: Any = None,
    **options: Any,
) -> tuple[Split, Any]:
    """A split over plain CPU devices, and a model that is made in its scope."""
    split = simulated(batches, micro_batches)
    with split.scope():
        return split, (make or classifier())(*given, **options)


def in_both(
    make: Any = None, batches: Any = (70, 30), micro_batches: Any = None
) -> tuple[Split, Any, Any]:
    """A split, a model that is made in its scope, and one device's with the same weights."""
    keras.utils.set_random_seed(3)
    make = make or classifier("adam")
    split, model = in_split(make, batches=batches, micro_batches=micro_batches)
    one_device = make()
    one_device.set_weights(model.get_weights())
    return split, model, one_device


def largest(one: Iterable[Any], other: Iterable[Any]) -> float:
    """The largest difference of two lists of arrays or numbers."""
    pairs = zip(one, other, strict=True)
    return max(float(np.abs(np.subtract(*pair)).max()) for pair in pairs)


def apart(one: Any, other: Any) -> float:
    """The largest difference of two models' weights."""
    return largest(one.get_weights(), other.get_weights())


@dataclass(frozen=True)
class Differences:
    """The largest differences between a split's training and one device's.

    They are relative for logs above 1.
    """

    weights: float
    logs: float


def in_turn(case: Case, split: Split, lasts: Sequence[int]) -> Iterator[Differences]:
    """The differences after some epochs, each with a last batch of one of these sizes.

    Two whole global batches come before it in each epoch. All epochs are of the same two models, so
    that each is traced once.
    """
    expected = model = None
    for last in lasts:
        expected = alone(case, last, expected and expected.model)
        model = model or started(case, split.scope(), expected)
        yield beside(case, model, split.fit, expected)


@dataclass(frozen=True)
class Alone:
    """One device's training: its model, and each epoch's logs."""

    data: tuple[Any, ...]
    start: list[Any]
    model: Any
    history: dict[str, Sequence[float]]


def alone(case: Case, last: int, model: Any = None) -> Alone:
    """Trains a case on one device, continuing with `model` if given."""
    x, y, sample_weight = data = (*case.data(2 * SAMPLES + last), None)[:3]
    if model is None:
        keras.utils.set_random_seed(3)
        model = case.make()
        model.run_eagerly = case.eagerly
    start = model.get_weights()
    options = {"sample_weight": sample_weight, **_options(case)}
    return Alone(data, start, model, model.fit(x, y, SAMPLES, **options).history)


def started(case: Case, scope: Any, expected: Alone) -> Any:
    """A model made in `scope`, with the weights that the one device's model began with."""
    with scope:
        model = case.make()
    model.set_weights(expected.start)
    return model


def compared(case: Case, scope: Any, fit: Any, expected: Alone) -> Differences:
    """The differences of another way to train: `fit` gets a model made in `scope`."""
    return beside(case, started(case, scope, expected), fit, expected)


def beside(case: Case, model: Any, fit: Any, expected: Alone) -> Differences:
    """The differences between what `fit` makes of a model and one device's training."""
    x, y, sample_weight = expected.data
    found = fit(model, x, y, sample_weight=sample_weight, **_options(case)).history
    assert set(found) == set(expected.history)
    logs = max(_apart(found[name], expected.history[name]) for name in found)
    return Differences(apart(model, expected.model), logs)


def fit(model: Any, *data: Any, **options: Any) -> Any:
    """Keras' own training of a case."""
    return model.fit(*data, batch_size=SAMPLES, **options)


def _options(case: Case) -> dict[str, Any]:
    return {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **case.options}


def _apart(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of each epoch's numbers.

    An epoch has several where a metric has one for each class.
    """
    apart = np.abs(np.subtract(found, expected))
    return float(np.max(apart / np.maximum(1.0, np.abs(expected))))
