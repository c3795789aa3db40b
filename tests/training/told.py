"""Models that a split can't train as one device does, each with what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.late import keras, layers, losses, metrics, ops, tf
from tests.training.models import classifier, compiled, cross_entropy, dense
from tests.training.own_steps import (
    another_optimizer,
    by_tensorflow,
    centring,
    clipped_weights,
    model_with,
    much_logged,
    no_optimizer,
    plain,
    rate_afterwards,
    rate_by_samples,
    sampled,
    skipping,
    stepping,
    two_optimizers,
    two_passes,
)


def own_loss(name: str) -> Any:
    of_each = losses.sparse_categorical_crossentropy

    def summed(y: Any, p: Any) -> Any:
        return ops.sum(of_each(y, p)) / 50

    def dice(y: Any, p: Any) -> Any:
        of_class = ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), 3)
        return 1 - 2 * ops.sum(of_class * p) / (ops.sum(of_class) + ops.sum(p**2))

    def drawn(y: Any, p: Any) -> Any:
        return ops.mean(p) + keras.random.normal(())

    def seldom(_: Any, p: Any) -> Any:
        return ops.sum(p) * 0

    def signs(_: Any, p: Any) -> Any:
        return ops.mean(p) * tf.random.normal(())

    def positives(y: Any, p: Any) -> Any:
        # Only the first of the samples tried is one.
        ones = ops.cast(ops.reshape(y, (-1,)) == 1, p.dtype)
        return ops.sum(ones * of_each(y, p)) / ops.maximum(ops.sum(ones), 1)

    def masked(y: Any, p: Any) -> Any:
        mask = ops.cast(ops.reshape(y, (-1,)) >= 0, p.dtype)  # of 1 everywhere
        return ops.sum(mask * of_each(ops.abs(y), p)) / ops.sum(mask)

    def weighed(y: Any, p: Any) -> Any:
        weights = ops.cast(ops.reshape(y, (-1,)) >= 0, p.dtype)  # of 1 everywhere
        loss = ops.mean(weights * of_each(y, p)) / ops.mean(weights)
        return tf.where(ops.sum(weights) > 0, loss, 0.0)

    def by_ones(y: Any, p: Any) -> Any:
        losses = of_each(y, p)
        ones = ops.ones_like(losses), ops.ones(ops.shape(p)[:1])
        return sum(0.5 / ops.sum(of_one) for of_one in ones) * ops.sum(losses)

    def hardest(y: Any, p: Any) -> Any:  # of which there must be two
        losses = of_each(y, p)
        return ops.mean(ops.top_k(losses, ops.maximum(2, ops.shape(losses)[0] // 4))[0])

    # It is the mean of the labelled samples, which all of the first batch are.
    def of_chosen(y: Any, p: Any) -> Any:
        losses = of_each(y, p)
        return ops.mean(tf.boolean_mask(losses, ops.reshape(y, (-1,)) >= 0))

    def two_by_two(y: Any, p: Any) -> Any:
        losses = of_each(y, p)
        return ops.mean(ops.sum(ops.reshape(losses, (-1, 2)), axis=1))

    return locals()[name]


def with_loss(name: str, weights: Any = None) -> Any:
    return classifier(loss=lambda: own_loss(name), layers={"weights": weights})()


def with_losses(*names: str, weights: Any = None) -> Any:
    """A model with an output for each of these losses."""
    first, hidden, _ = dense(weights=weights)
    inner = hidden(first)
    outputs = [layers.Dense(3, "softmax")(inner) for _ in names]
    return compiled(keras.Model(first, outputs), [own_loss(name) for name in names])


def total_of_own() -> Any:
    class Own(keras.Sequential):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, *rest: Any) -> Any:
            return super().compute_loss(x, y, y_pred, *rest) + ops.sum(y_pred**2)

    return compiled(Own(dense()))


def normalised_behind_a_mask() -> Any:
    body = [keras.Input((5,), dtype="int32"), layers.Embedding(20, 4, mask_zero=True)]
    body += [layers.BatchNormalization(synchronized=True), layers.LSTM(4)]
    return compiled([*body, layers.Dense(3, "softmax")])


# Each with the variable that it updates, and how: neither by a mean nor by a sum over samples
_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "average": lambda kept, x: kept + 0.1 * (ops.mean(x) - kept),
    "largest": lambda _, x: ops.cast(1e6 * ops.max(x), "int32"),
    "max": lambda kept, x: ops.maximum(kept, ops.max(x)),
    "maxima": lambda kept, x: kept + ops.max(x),
    "decayed_sum": lambda kept, x: 0.9 * kept + 0.1 * ops.sum(x),
    "sum": lambda kept, x: kept + ops.sum(x),
    "last_mean": lambda _, x: ops.cast(ops.mean(x), "float32"),
    "last_max": lambda _, x: ops.cast(ops.max(x), "float32"),
}


def keeping(kind: str, policy: Any = None) -> Any:
    """A layer of this policy with a state that it updates in this way."""

    class Keeping(layers.Layer):
        def build(self, _: Any) -> None:
            how = {"dtype": "int32" if kind == "largest" else "float32", "name": "kept"}
            self.kept = self.add_weight((), "zeros", trainable=False, **how)

        def call(self, x: Any) -> Any:
            self.kept.assign(_UPDATES[kind](self.kept, x))
            return x

    return Keeping(name=f"layer_{kind}", dtype=policy)


def metric(kind: str) -> Any:
    """A metric that updates its state in this way."""

    class Keeping(metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name=f"metric_{kind}")
            self.kept = self.add_variable((), "zeros", name="kept")

        def update_state(self, _: Any, p: Any, **__: Any) -> None:
            self.kept.assign(_UPDATES[kind](self.kept, p[:, 0]))

        def result(self) -> Any:
            return self.kept

    return Keeping()


def total_of_maxima() -> Any:
    class Total(metrics.Sum):
        def update_state(self, _: Any, p: Any, **__: Any) -> None:
            super().update_state(ops.max(p[:, 0]))

    return Total("maxima_in_all")


def of_odd_states() -> Any:
    """A model with layers and metrics whose states are neither means nor sums over samples."""
    first, *rest = dense()
    kept = [keeping(kind) for kind in ("decayed_sum", "largest")]
    counted = [metric(kind) for kind in ("max", "maxima", "average")]
    return compiled([first, *kept, *rest], metrics=[*counted, total_of_maxima()])


def of_mean_and_sum() -> Any:
    """A model without a loss but a mean that a layer adds, and with a sum that it keeps."""
    body = [dense()[0], keeping("sum"), layers.Dense(6), adding_layer("only")]
    return compiled(body, None)


def of_pairs() -> Any:
    """A model that compares each sample with each other one, as a retrieval model does.

    Its outputs are of pairs.
    """

    def in_batch(_: Any, p: Any) -> Any:
        of_each = losses.sparse_categorical_crossentropy
        return ops.mean(of_each(ops.arange(ops.shape(p)[0]), p, from_logits=True))

    class Pairs(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.of = layers.Dense(4)

        def call(self, x: Any) -> Any:
            return ops.matmul(self.of(x), ops.transpose(self.of(x)))

    return compiled(Pairs(), in_batch)


def adding_layer(kind: str) -> Any:
    """A layer that adds to the loss: a sum over the batch, or another number."""

    class Adding(layers.Layer):
        def call(self, x: Any) -> Any:
            losses = {"sum": 1e-3 * ops.sum(x**2), "largest": ops.max(x)}
            self.add_loss(losses.get(kind, ops.mean(x)))
            return x

    return Adding(name="mine")


def adding(kind: str) -> Any:
    first, *rest = dense()
    return compiled([first, layers.Dense(6), adding_layer(kind), *rest])


def of_the_batch() -> Any:
    """A model that subtracts the batch's mean from outputs, in all ways that one writes it."""

    def centred(x: Any) -> Any:
        return x - ops.mean(x, axis=0, keepdims=True)

    class Centring(layers.Layer):
        def call(self, x: Any) -> Any:
            return centred(x)

    inputs = keras.Input((6,))
    ways = [layers.Dense(6, activation=centred, name="activated")(inputs)]
    ways.append(layers.Lambda(centred, name="of_lambda")(inputs))
    ways += [Centring(name="of_class")(inputs), centred(inputs)]
    return compiled(keras.Model(inputs, layers.Dense(3, "softmax")(layers.Add()(ways))))


def checked(model: Any, x: Any, y: Any) -> Any:
    """What the parity check says of a step of the model on these samples."""
    from gpubalance.engine.step import built, parity

    batch = tf.nest.map_structure(lambda part: tf.constant(part[:100]), (x, y))
    built.build(model, tf.distribute.get_strategy(), batch, trains=True)
    return parity.check(model, batch, "CPU:0")


DIVIDED = "is divided by a sum or a mean over the batch, such as of weights"
BY_DEVICES = "calls tf.nn.compute_average_loss, which divides by the number of devices"
NOT_TRIED = r"can't be tried on a few samples \(InvalidArgumentError: (Input to reshape|shape of dy)"
OF_A_SUM = "takes the gradients of a sum over the batch"
NO_MEAN = "takes gradients that are not a mean over samples"
DRAWS = "draws random numbers for the whole batch"
NO_RESULT = "which is neither a metric's result"
LATE = "which is computed from values read after the gradients"
KEPT = "updates kept from its samples, but not by a mean or a sum"
ADDED = "does more than add a mean or a sum over samples to"
NOT_ITS = "which is not the"
OF_STEP = r"the train_step of the model \S+ applies gradients with loss_scale\w*"
AFTER = "after it applies gradients"
ONCE = "conditionally or in a loop, but a split applies them once"
RATE, BY_SAMPLES = r"(?i:sgd)\w*/learning_rate", "from its samples"
# And nothing of its count of steps
SET = (
    r"^the model centring sets centring\.centre from samples. It is a tf.Variable, .+\Z"
)
A_NUMBER = "sums over the batch and returns one number"


def unreduced() -> Any:
    return model_with(plain, cross_entropy(None)())


# What makes a model, with its arguments, and what is said of it
Told = dict[str, tuple[Any, ...]]
REFUSED: Told = {
    "two optimizers": (model_with, two_optimizers, rf"with adam\w*, {NOT_ITS}"),
    "another optimizer": (model_with, another_optimizer, rf"^{OF_STEP}, {NOT_ITS}"),
    "no optimizer": (model_with, no_optimizer, "changes weights without the optimizer"),
    "TensorFlow's assignments": (
        model_with,
        by_tensorflow,
        "kernel directly through TensorF.*",
    ),
    "scaled outside the tape": (
        stepping,
        "outside",
        "computes no gradient for any weight",
    ),
    "an average by TensorFlow": (stepping, "average", BY_DEVICES),
    "weights clipped": (model_with, clipped_weights, f"kernel {AFTER}"),
    "a step skipped": (model_with, skipping, ONCE),
    "a rate by samples": (model_with, rate_by_samples, rf"sets {RATE} {BY_SAMPLES}"),
    "a rate set afterwards": (model_with, rate_afterwards, rf"changes {RATE} {AFTER}"),
    "no reduction": (unreduced, "which a loss without a reduction needs"),
    "a sum as one number": (with_loss, "summed", rf"\(summed\) {A_NUMBER}"),
    "a step's sum, with L2 and dropout": (stepping, "random sum, L2", OF_A_SUM),
    "compute_loss": (total_of_own, rf"\(your own code: compute_loss\) {OF_A_SUM}"),
    "a layer's loss": (adding, "sum", "the layer mine adds a sum over the batch to"),
    "a mask": (normalised_behind_a_mask, "gets a mask, and Keras does not synch"),
}
LOGS = [f"logs {name}, {NO_RESULT} nor a mean" for name in ("norm", "spread", "codes")]
LOGS += [f"logs {name}, {LATE}" for name in ("output", "counted")]
OF_BATCH = r"activated, of_lambda, of_class, \w+"
STATES = [f"layer_{name} {KEPT}" for name in ("decayed_sum", "largest")]
STATES += [f"metric_{name} {ADDED} kept" for name in ("max", "maxima", "average")]
STATES.append(f"maxima_in_all {ADDED} total")
# The same, and all that is said of it
TOLD: Told = {
    "two passes": (model_with, two_passes, ["as SAM does"]),
    "logs": (model_with, much_logged, LOGS),
    "a step's weights": (stepping, "weights", [DIVIDED]),
    "weights of the first batch": (with_loss, "weighed", "l2", [DIVIDED]),
    "those that are chosen": (with_loss, "of_chosen", [DIVIDED]),
    "a step of twelve": (stepping, "twelve", [NOT_TRIED]),
    "a sampled softmax": (sampled, [f"the train_step {DRAWS}"]),
    "clipping": (stepping, "clipped", [NO_MEAN]),
    "outputs of pairs": (of_pairs, [r"\(in_batch\) is not a mean over samples"]),
    "pairs, with dropout": (stepping, "random pairs", [NO_MEAN]),
    "a layer's loss of the batch": (adding, "largest", [rf"mine\) {NO_MEAN}"]),
    "layers of the batch": (of_the_batch, [rf"own code: {OF_BATCH}\) {NO_MEAN}"]),
    "states": (of_odd_states, STATES),
    "a variable of TensorFlow": (centring, [SET]),
}
# Losses of one model with an output for each
NO_MEANS = ("dice", "positives")
