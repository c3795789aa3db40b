"""Models that a split can't train as one device does, each with what is said of it."""

from __future__ import annotations

from typing import Any

from tests.support.late import keras, layers, losses, metrics, ops, tf
from tests.training.models import classifier, compiled, cross_entropy, dense
from tests.training.own_steps import (
    another_optimizer,
    by_tensorflow,
    clipped_weights,
    gradient_norm_logged,
    model_with,
    no_optimizer,
    output_counted,
    output_logged,
    plain,
    rate_afterwards,
    rate_by_samples,
    sampled,
    skipping,
    spread_logged,
    stepping,
    two_optimizers,
    two_passes,
)


def with_loss(name: str, weights: Any = None) -> Any:
    of_each = losses.sparse_categorical_crossentropy

    def summed(y: Any, p: Any) -> Any:
        return ops.sum(of_each(y, p)) / 50

    def dice(y: Any, p: Any) -> Any:
        of_class = ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), 3)
        return 1 - 2 * ops.sum(of_class * p) / (ops.sum(of_class) + ops.sum(p**2))

    def noisy(y: Any, p: Any) -> Any:
        return summed(y, p) * (1 + 0.1 * tf.random.normal(()))

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
        return ops.sum(losses) * (
            0.5 / ops.sum(ops.ones_like(losses))
            + 0.5 / ops.sum(ops.ones(ops.shape(p)[:1]))
        )

    def by_mean_weight(y: Any, p: Any) -> Any:
        weights = 1 + ops.cast(ops.reshape(y, (-1,)), p.dtype)
        return ops.mean(weights / ops.mean(weights) * of_each(y, p))

    def balanced(y: Any, p: Any) -> Any:
        of_class = ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), 3)
        weights = ops.sum(of_class / (1 + ops.sum(of_class, axis=0)), axis=1)
        return ops.mean(weights * of_each(y, p))

    def hardest(y: Any, p: Any) -> Any:  # of which there must be two
        losses = of_each(y, p)
        return ops.mean(ops.top_k(losses, ops.maximum(2, ops.shape(losses)[0] // 4))[0])

    def above_their_mean(y: Any, p: Any) -> Any:
        losses = of_each(y, p)
        return ops.where(losses > ops.mean(losses), losses, 0.0)

    # It is the mean of the labelled samples, which all of the first batch are.
    def of_chosen(y: Any, p: Any) -> Any:
        losses = of_each(y, p)
        return ops.mean(tf.boolean_mask(losses, ops.reshape(y, (-1,)) >= 0))

    def two_by_two(y: Any, p: Any) -> Any:
        losses = of_each(y, p)
        return ops.mean(ops.sum(ops.reshape(losses, (-1, 2)), axis=1))

    chosen = locals()[name]
    return classifier(loss=lambda: chosen, layers={"weights": weights})()


def above_mean(seed: int) -> Any:
    """A classifier of other weights, trained on the samples whose loss is above the mean."""
    keras.utils.set_random_seed(seed)
    return with_loss("above_their_mean")


def total_of_own() -> Any:
    class Own(keras.Sequential):
        def compute_loss(
            self, x: Any, y: Any, y_pred: Any, *rest: Any, **named: Any
        ) -> Any:
            return super().compute_loss(x, y, y_pred, *rest, **named) + ops.sum(
                y_pred**2
            )

    return compiled(Own(dense()))


def normalised_behind_a_mask() -> Any:
    body = [
        layers.Embedding(20, 4, mask_zero=True),
        layers.BatchNormalization(synchronized=True),
        layers.LSTM(4),
    ]
    return compiled(
        [keras.Input((5,), dtype="int32"), *body, layers.Dense(3, "softmax")]
    )


def keeping(kind: str) -> Any:
    class Keeping(layers.Layer):
        def build(self, _: Any) -> None:
            dtype = "int32" if kind == "largest" else "float32"
            self.kept = self.add_weight(
                (), "zeros", dtype, trainable=False, name="kept"
            )

        def call(self, x: Any) -> Any:
            if kind == "largest":
                self.kept.assign(ops.cast(1e6 * ops.max(x), "int32"))
                return x
            self.kept.assign(
                self.kept + ops.sum(x)
                if kind == "sum"
                else 0.9 * self.kept + 0.1 * ops.sum(x)
            )
            return x

    first, *rest = dense()
    return compiled([first, Keeping(name="mine"), *rest])


def with_metric(kind: str) -> Any:
    class Keeping(metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="mine")
            self.kept = self.add_variable((), "zeros", name="kept")

        def update_state(self, _: Any, p: Any, **__: Any) -> None:
            new = {
                "max": ops.maximum(self.kept, ops.max(p)),
                "maxima": self.kept + ops.max(p),
            }
            self.kept.assign(
                {**new, "average": self.kept + 0.1 * (ops.mean(p[:, 0]) - self.kept)}[
                    kind
                ]
            )

        def result(self) -> Any:
            return self.kept

    class Total(metrics.Sum):
        def update_state(self, _: Any, p: Any, **__: Any) -> None:
            super().update_state(ops.max(p[:, 0]))

    return compiled(dense(), metrics=[Total("mine") if kind == "sum" else Keeping()])


def of_pairs() -> Any:
    """A model that compares each sample with each other one, as a retrieval model does.

    Its outputs are of pairs.
    """

    def in_batch(_: Any, p: Any) -> Any:
        return ops.mean(
            losses.sparse_categorical_crossentropy(
                ops.arange(ops.shape(p)[0]), p, from_logits=True
            )
        )

    class Pairs(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.of = layers.Dense(4)

        def call(self, x: Any) -> Any:
            return ops.matmul(self.of(x), ops.transpose(self.of(x)))

    return compiled(Pairs(), in_batch)


def adding(kind: str) -> Any:
    """A model with a layer that adds to the loss, or subtracts the batch's mean.

    What it adds is a sum over the batch, or another number.
    """

    class Adding(layers.Layer):
        def call(self, x: Any) -> Any:
            if kind == "mean":
                return x - ops.mean(x, axis=0)
            losses = {
                "sum": 1e-3 * ops.sum(x**2),
                "largest": ops.max(x),
                "only": ops.mean(x),
            }
            self.add_loss(losses[kind])
            return x

    first, *rest = dense()
    body = [first, layers.Dense(6), Adding(name="mine")]
    return compiled(body, None) if kind == "only" else compiled([*body, *rest])


def of_the_batch(where: str) -> Any:
    """A model that subtracts the batch's mean from a layer's outputs.

    It does so in a function that it gives to Keras.
    """

    def centred(x: Any) -> Any:
        return x - ops.mean(x, axis=0, keepdims=True)

    inputs = keras.Input((6,))
    body = layers.Dense(6, activation=centred if where == "activation" else None)(
        inputs
    )
    body = {"lambda": layers.Lambda(centred, name="mine"), "graph": centred}.get(
        where, lambda x: x
    )(body)
    return compiled(keras.Model(inputs, layers.Dense(3, "softmax")(body)))


def checked(model: Any, x: Any, y: Any) -> Any:
    """What the parity check says of a step of the model on these samples."""
    from gpubalance.engine.step import built, parity

    batch = tf.constant(x[:100]), tf.constant(y[:100])
    built.build(model, tf.distribute.get_strategy(), batch, trains=True)
    return parity.check(model, batch, "CPU:0")


DIVIDED = "is divided by a sum or a mean over the batch, as of weights"
BY_DEVICES = "calls tf.nn.compute_average_loss, which divides by the number of devices"
NOT_TRIED = r"can't be tried on a few samples \(InvalidArgumentError: (Input to reshape|shape of dy)"
OF_A_SUM = "takes the gradients of a sum over the batch"
NO_MEAN = "takes gradients that are not a mean over samples"
LATE = "which is computed with what it reads after it applies"
KEPT = "mine updates kept from its samples to what is neither a mean nor a sum"
ADDED = "the metric mine does not only add to kept a mean or a sum"
# What makes a model, with its arguments, and what is said of it
Told = dict[str, tuple[Any, ...]]
REFUSED: Told = {
    "two optimizers": (
        model_with,
        two_optimizers,
        r"applies gradients with adam\w*, which is not the",
    ),
    "another optimizer": (
        model_with,
        another_optimizer,
        r"^the train_step of the model \S+ applies gradients with loss_scale\w*, which is not the",
    ),
    "no optimizer": (model_with, no_optimizer, "changes weights without its optimizer"),
    "TensorFlow's assignments": (
        model_with,
        by_tensorflow,
        "kernel through TensorFlow: each device would get",
    ),
    "scaled outside the tape": (stepping, "outside", "gets no gradient for any weight"),
    "an average by TensorFlow": (stepping, "average", BY_DEVICES),
    "a compile of one's own": (
        stepping,
        "no optimizer",
        "has no optimizer: its own compile does not set one",
    ),
    "weights clipped": (
        model_with,
        clipped_weights,
        "kernel after it applies gradients",
    ),
    "a step skipped": (
        model_with,
        skipping,
        "under a condition or in a loop, but a split applies them once",
    ),
    "a rate by samples": (
        model_with,
        rate_by_samples,
        r"sets sgd\w*/learning_rate by what it computes from samples",
    ),
    "a rate set afterwards": (
        model_with,
        rate_afterwards,
        r"changes sgd\w*/learning_rate after it applies gradients",
    ),
    "no reduction": (
        lambda: model_with(plain, cross_entropy(None)()),
        "which a loss without a reduction needs",
    ),
    "a sum as one number": (
        with_loss,
        "summed",
        r"\(summed\) sums over the batch and returns one number",
    ),
    "a step's sum": (stepping, "sum", OF_A_SUM),
    "a step's sum and L2": (stepping, "sum, L2", OF_A_SUM),
    "a step's sum, with dropout": (stepping, "random sum", OF_A_SUM),
    "a step's values": (stepping, "values", OF_A_SUM),
    "compute_loss": (total_of_own, rf"\(your own code: compute_loss\) {OF_A_SUM}"),
    "a layer's loss": (
        adding,
        "sum",
        "the layer mine adds a sum over the batch to the loss",
    ),
    "a random sum": (
        with_loss,
        "noisy",
        r"\(noisy\) sums over the batch and returns one number",
    ),
    "numbers without a seed": (
        with_loss,
        "drawn",
        "creates a variable in its first step, as keras.random",
    ),
    "a mask": (
        normalised_behind_a_mask,
        r"gets a mask: there Keras does not synchronise",
    ),
}
TOLD: Told = {
    "two passes": (model_with, two_passes, "as SAM does"),
    "a gradient norm": (
        model_with,
        gradient_norm_logged,
        "logs norm, which is neither a metric's result",
    ),
    "a variance": (
        model_with,
        spread_logged,
        "logs spread, which is neither a metric's result nor a mean",
    ),
    "codes in use": (
        model_with,
        spread_logged,
        "logs codes, which is neither a metric's result nor a mean",
    ),
    "an output": (model_with, output_logged, f"logs output, {LATE}"),
    "a metric of an output": (model_with, output_counted, f"logs counted, {LATE}"),
    "Dice": (with_loss, "dice", r"\(dice\) is not a mean over samples"),
    "a mask of the first batch": (with_loss, "masked", DIVIDED),
    "weights of the first batch, beside a regulariser": (
        with_loss,
        "weighed",
        "l2",
        DIVIDED,
    ),
    "a step's weights": (stepping, "weights", DIVIDED),
    "a step of twelve": (stepping, "twelve", NOT_TRIED),
    "a loss of 0": (
        with_loss,
        "seldom",
        r"\(seldom\) is 0 for the samples tried, so it is not known",
    ),
    "a loss of any sign": (
        with_loss,
        "signs",
        "the loss signs draws random numbers for the batch as a whole",
    ),
    "a mean of some": (
        with_loss,
        "positives",
        r"\(positives\) is not a mean over samples",
    ),
    "a step's mean of some": (stepping, "positives", NO_MEAN),
    "weights by their mean": (
        with_loss,
        "by_mean_weight",
        r"\(by_mean_weight\) is not a mean over samples",
    ),
    "weights by the batch's classes": (
        with_loss,
        "balanced",
        r"\(balanced\) is not a mean over samples",
    ),
    "the hardest": (with_loss, "hardest", r"\(hardest\) is not a mean over samples"),
    **{
        f"a threshold, {seed}": (
            above_mean,
            seed,
            r"\(above_their_mean\) is not a mean",
        )
        for seed in range(6)
    },
    "those that are chosen": (with_loss, "of_chosen", DIVIDED),
    "a sampled softmax": (
        sampled,
        "the train_step draws random numbers for the batch as a whole",
    ),
    "clipping": (stepping, "clipped", NO_MEAN),
    "outputs of pairs": (of_pairs, r"\(in_batch\) is not a mean over samples"),
    "pairs": (stepping, "pairs", NO_MEAN),
    "pairs, with dropout": (stepping, "random pairs", NO_MEAN),
    "a layer of the batch": (adding, "mean", rf"\(your own code: mine\) {NO_MEAN}"),
    "a layer's loss of the batch": (
        adding,
        "largest",
        rf"\(your own code: mine\) {NO_MEAN}",
    ),
    "an activation of the batch": (
        of_the_batch,
        "activation",
        rf"\(your own code: dense\w*\) {NO_MEAN}",
    ),
    "a Lambda of the batch": (
        of_the_batch,
        "lambda",
        rf"\(your own code: mine\) {NO_MEAN}",
    ),
    "a graph's operation": (
        of_the_batch,
        "graph",
        rf"\(your own code: mean\w*\) {NO_MEAN}",
    ),
    "a layer's average": (keeping, "average", KEPT),
    "a layer's largest": (keeping, "largest", KEPT),
    "a maximum": (with_metric, "max", ADDED),
    "maxima": (with_metric, "maxima", ADDED),
    "a moving average": (with_metric, "average", ADDED),
    "a sum of maxima": (
        with_metric,
        "sum",
        "the metric mine does not only add to total a mean or a sum",
    ),
}
