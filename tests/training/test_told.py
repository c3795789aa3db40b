"""What a split can't train as one device does is refused, or trained and told, when it is first met."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpubalance.errors import BadInput
from tests.late import keras, layers, metrics, ops, tf
from tests.training.cases import (
    classifier,
    compiled,
    cross_entropy,
    dense,
    in_split,
    numbers,
    sampling,
    sentences,
    words,
)

X, Y = numbers(240)


def model_with(
    train_step: Callable[[Any, Any, Any], Any], loss: Any = "sparse_categorical_crossentropy", weights: Any = None
) -> Any:
    """A classifier whose `train_step` gets its gradients, and a function that computes them."""

    class Own(keras.Sequential):  # type: ignore[misc]
        second = keras.optimizers.Adam()
        counted = keras.metrics.Mean(name="counted")

        def train_step(self, data: Any) -> Any:
            def gradients() -> Any:
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(data[0], data[1], self(data[0], training=True))
                return tape.gradient(loss, self.trainable_variables)

            self.now = data[0]
            return train_step(self, gradients(), gradients) or {}

    return compiled(Own(dense(weights=weights)), loss)


def apply(model: Any, grads: Any) -> None:
    model.optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def two_optimizers(model: Any, grads: Any, _: Any) -> None:
    apply(model, grads)
    model.second.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def another_optimizer(model: Any, grads: Any, _: Any) -> None:
    model.second.apply_gradients(zip(grads, model.trainable_variables, strict=True))


def no_optimizer(model: Any, grads: Any, _: Any) -> None:
    for variable, grad in zip(model.trainable_variables, grads, strict=True):
        variable.assign_sub(0.1 * grad)


def by_tensorflow(model: Any, grads: Any, _: Any) -> None:
    for variable, grad in zip(model.trainable_variables, grads, strict=True):
        variable.value.assign_sub(0.1 * grad)


def clipped_weights(model: Any, grads: Any, _: Any) -> None:
    apply(model, grads)
    for variable in model.trainable_variables:
        variable.assign(ops.clip(variable, -0.1, 0.1))


def skipping(model: Any, grads: Any, _: Any) -> None:
    ops.cond(tf.linalg.global_norm(grads) < 0.2, lambda: apply(model, grads), lambda: None)


def rate_by_samples(model: Any, grads: Any, _: Any) -> None:
    model.optimizer.learning_rate.assign(0.1 * tf.linalg.global_norm(grads))
    apply(model, grads)


def rate_afterwards(model: Any, grads: Any, _: Any) -> None:
    apply(model, grads)
    model.optimizer.learning_rate.assign(0.9 * model.optimizer.learning_rate)


def rate_before(model: Any, grads: Any, _: Any) -> None:
    model.optimizer.learning_rate.assign(0.9 * model.optimizer.learning_rate)
    apply(model, grads)


def two_passes(model: Any, grads: Any, gradients: Any) -> None:
    """Trains like SAM: applies the gradients at the weights where a first step would lead."""
    for sign in (1, -1):
        for variable, grad in zip(model.trainable_variables, grads, strict=True):
            variable.assign_add(sign * 0.1 * grad)
        if sign == 1:
            second = gradients()
    apply(model, second)


def plain(model: Any, grads: Any, _: Any) -> None:
    apply(model, grads)


def gradient_norm_logged(model: Any, grads: Any, _: Any) -> Any:
    apply(model, grads)
    return {"norm": tf.linalg.global_norm(grads)}


def spread_logged(model: Any, grads: Any, _: Any) -> Any:
    apply(model, grads)
    of_codes = tf.unique(tf.argmax(model.now, axis=1))[0]
    return {"spread": tf.math.reduce_variance(model.now[:, 0]), "codes": tf.size(of_codes)}


def output_counted(model: Any, grads: Any, _: Any) -> Any:
    apply(model, grads)
    model.counted.update_state(model(model.now)[:, 0])
    return {"counted": model.counted.result()}


def output_logged(model: Any, grads: Any, _: Any) -> Any:
    apply(model, grads)
    return {"output": ops.mean(model(model.now)[:, 0])}


def with_loss(name: str, weights: Any = None) -> Any:
    of_each = keras.losses.sparse_categorical_crossentropy

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
        ones = ops.cast(ops.reshape(y, (-1,)) == 1, p.dtype)  # of the samples tried only the first is one
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
        return ops.sum(losses) * (0.5 / ops.sum(ops.ones_like(losses)) + 0.5 / ops.sum(ops.ones(ops.shape(p)[:1])))

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

    def of_chosen(y: Any, p: Any) -> Any:  # the mean of those that are labelled, which all of the first batch are
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


def sampled() -> Any:
    """A model whose loss is of a few classes, drawn for the whole batch."""

    class Sampled(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = keras.layers.Dense(4)
            self.kernel, self.bias = (self.add_weight(shape=shape, name="of") for shape in ((50, 4), (50,)))

        def call(self, x: Any) -> Any:
            return self.body(x)

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                of_classes = tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.bias)
                labels = tf.reshape(data[1], (-1, 1))
                losses = tf.nn.sampled_softmax_loss(*of_classes, labels, self(data[0]), 8, 50)
                loss = tf.reduce_mean(losses)
            apply(self, tape.gradient(loss, self.trainable_variables))
            return {}

    return compiled(Sampled(), None)


def total_of_own() -> Any:
    class Own(keras.Sequential):  # type: ignore[misc]
        def compute_loss(self, x: Any, y: Any, y_pred: Any, *rest: Any, **named: Any) -> Any:
            return super().compute_loss(x, y, y_pred, *rest, **named) + ops.sum(y_pred**2)

    return compiled(Own(dense()))


def normalised_behind_a_mask() -> Any:
    body = [layers.Embedding(20, 4, mask_zero=True), layers.BatchNormalization(synchronized=True), layers.LSTM(4)]
    return compiled([keras.Input((5,), dtype="int32"), *body, layers.Dense(3, "softmax")])


def keeping(kind: str) -> Any:
    class Keeping(layers.Layer):  # type: ignore[misc]
        def build(self, _: Any) -> None:
            dtype = "int32" if kind == "largest" else "float32"
            self.kept = self.add_weight((), "zeros", dtype, trainable=False, name="kept")

        def call(self, x: Any) -> Any:
            if kind == "largest":
                self.kept.assign(ops.cast(1e6 * ops.max(x), "int32"))
                return x
            self.kept.assign(self.kept + ops.sum(x) if kind == "sum" else 0.9 * self.kept + 0.1 * ops.sum(x))
            return x

    first, *rest = dense()
    return compiled([first, Keeping(name="mine"), *rest])


def with_metric(kind: str) -> Any:
    class Keeping(metrics.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="mine")
            self.kept = self.add_variable((), "zeros", name="kept")

        def update_state(self, _: Any, p: Any, **__: Any) -> None:
            new = {"max": ops.maximum(self.kept, ops.max(p)), "maxima": self.kept + ops.max(p)}
            self.kept.assign({**new, "average": self.kept + 0.1 * (ops.mean(p[:, 0]) - self.kept)}[kind])

        def result(self) -> Any:
            return self.kept

    class Total(metrics.Sum):  # type: ignore[misc]
        def update_state(self, _: Any, p: Any, **__: Any) -> None:
            super().update_state(ops.max(p[:, 0]))

    return compiled(dense(), metrics=[Total("mine") if kind == "sum" else Keeping()])


def of_pairs() -> Any:
    """A model that compares each sample with each other one, as a retrieval model does: its outputs are of pairs."""

    def in_batch(_: Any, p: Any) -> Any:
        return ops.mean(keras.losses.sparse_categorical_crossentropy(ops.arange(ops.shape(p)[0]), p, from_logits=True))

    class Pairs(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.of = keras.layers.Dense(4)

        def call(self, x: Any) -> Any:
            return ops.matmul(self.of(x), ops.transpose(self.of(x)))

    return compiled(Pairs(), in_batch)


def stepping(kind: str) -> Any:
    """A model whose `train_step` has no compiled loss: of a sum, of a value for each sample, or another."""

    class Stepping(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            x, y = data
            weights = tf.cast(y >= 0, "float32")  # of 1 everywhere
            with tf.GradientTape() as tape:
                loss = keras.losses.sparse_categorical_crossentropy(y, self(x, training=True))
                if kind == "average":
                    loss = tf.nn.compute_average_loss(loss)
                if "pairs" in kind:
                    loss = ops.mean((loss[:, None] - loss) ** 2, axis=1)
                if kind == "positives":
                    twos = ops.cast(y == 2, loss.dtype)  # of the samples tried only the last is one
                    loss = ops.sum(twos * loss) / ops.maximum(ops.sum(twos), 1)
                elif kind == "twelve":
                    loss = ops.mean(ops.reshape(loss[:12], (12,)))
                elif kind == "weights":
                    loss = ops.sum(loss * weights) / (ops.sum(weights) + 1e-7)
                elif kind != "values":
                    loss = ops.sum(loss) if "sum" in kind else ops.mean(loss)
                loss += sum(self.losses)
                if kind not in ("values", "outside"):
                    loss = self.optimizer.scale_loss(loss)
            if kind == "outside":
                loss = self.optimizer.scale_loss(loss)
            grads = tape.gradient(loss, self.trainable_variables)
            apply(self, tf.clip_by_global_norm(grads, 0.01)[0] if kind == "clipped" else grads)
            return {}

    body = dense(weights="l2" if "L2" in kind else None)
    model = Stepping([*body[:2], *([keras.layers.Dropout(0.5)] if "random" in kind else []), body[2]])
    if kind == "no optimizer":
        model.compiled = True  # as a GAN's own compile, which sets optimizers for its two models
    else:
        model.compile("sgd")
    return model


def adding(kind: str) -> Any:
    """A model with a layer that adds a sum over the batch to the loss, or another number, or takes the batch's mean."""

    class Adding(layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            if kind == "mean":
                return x - ops.mean(x, axis=0)
            losses = {"sum": 1e-3 * ops.sum(x**2), "largest": ops.max(x), "only": ops.mean(x)}
            self.add_loss(losses[kind])
            return x

    first, *rest = dense()
    body = [first, layers.Dense(6), Adding(name="mine")]
    return compiled(body, None) if kind == "only" else compiled([*body, *rest])


def of_the_batch(where: str) -> Any:
    """A model that takes the batch's mean from a layer's outputs, in a function that it gives to Keras."""

    def centred(x: Any) -> Any:
        return x - ops.mean(x, axis=0, keepdims=True)

    inputs = keras.Input((6,))
    body = layers.Dense(6, activation=centred if where == "activation" else None)(inputs)
    body = {"lambda": layers.Lambda(centred, name="mine"), "graph": centred}.get(where, lambda x: x)(body)
    return compiled(keras.Model(inputs, layers.Dense(3, "softmax")(body)))


DIVIDED = "is divided by a sum or a mean over the batch, as of weights"
OF_A_SUM = "takes the gradients of a sum over the batch"
NO_MEAN = "takes gradients that are not a mean over samples"
LATE = "which is computed with what it reads after it applies"
KEPT = "mine updates kept from its samples to what is neither a mean nor a sum"
ADDED = "the metric mine does not only add to kept a mean or a sum"
Told = dict[str, tuple[Any, ...]]  # what makes a model, with its arguments, and what is said of it
REFUSED: Told = {
    "two optimizers": (model_with, two_optimizers, r"applies gradients with adam\w*, which is not the"),
    "another optimizer": (model_with, another_optimizer, "which is not the optimizer"),
    "no optimizer": (model_with, no_optimizer, "changes weights without its optimizer"),
    "TensorFlow's assignments": (model_with, by_tensorflow, "kernel through TensorFlow: each device would get"),
    "scaled outside the tape": (stepping, "outside", "gets no gradient for any weight"),
    "an average by TensorFlow": (
        stepping,
        "average",
        r"calls tf.nn.compute_average_loss, which divides by the number of devices",
    ),
    "a compile of one's own": (stepping, "no optimizer", "has no optimizer: its own compile does not set one"),
    "weights clipped": (model_with, clipped_weights, "kernel after it applies gradients"),
    "a step skipped": (model_with, skipping, "under a condition or in a loop, but a split applies them once"),
    "a rate by samples": (model_with, rate_by_samples, r"sets sgd\w*/learning_rate by what it computes from samples"),
    "a rate set afterwards": (model_with, rate_afterwards, r"changes sgd\w*/learning_rate after it applies gradients"),
    "no reduction": (lambda: model_with(plain, cross_entropy(None)()), "which a loss without a reduction needs"),
    "a sum as one number": (with_loss, "summed", r"\(summed\) sums over the batch and returns one number"),
    "a step's sum": (stepping, "sum", OF_A_SUM),
    "a step's sum and L2": (stepping, "sum, L2", OF_A_SUM),
    "a step's sum, with dropout": (stepping, "random sum", OF_A_SUM),
    "a step's values": (stepping, "values", OF_A_SUM),
    "compute_loss": (total_of_own, rf"\(your own code: compute_loss\) {OF_A_SUM}"),
    "a layer's loss": (adding, "sum", "the layer mine adds a sum over the batch to the loss"),
    "a random sum": (with_loss, "noisy", r"\(noisy\) sums over the batch and returns one number"),
    "numbers without a seed": (with_loss, "drawn", "creates a variable in its first step, as keras.random"),
    "a mask": (normalised_behind_a_mask, r"gets a mask: there Keras does not synchronise"),
}
TOLD: Told = {
    "two passes": (model_with, two_passes, "as SAM does"),
    "a gradient norm": (model_with, gradient_norm_logged, "logs norm, which is neither a metric's result"),
    "a variance": (model_with, spread_logged, "logs spread, which is neither a metric's result nor a mean"),
    "codes in use": (model_with, spread_logged, "logs codes, which is neither a metric's result nor a mean"),
    "an output": (model_with, output_logged, f"logs output, {LATE}"),
    "a metric of an output": (model_with, output_counted, f"logs counted, {LATE}"),
    "Dice": (with_loss, "dice", r"\(dice\) is not a mean over samples"),
    "a mask of the first batch": (with_loss, "masked", DIVIDED),
    "weights of the first batch, beside a regulariser": (with_loss, "weighed", "l2", DIVIDED),
    "a step's weights": (stepping, "weights", DIVIDED),
    "a step of twelve": (
        stepping,
        "twelve",
        r"can't be tried on a few samples \(InvalidArgumentError: (Input to reshape|shape of dy)",
    ),
    "a loss of 0": (with_loss, "seldom", r"\(seldom\) is 0 for the samples tried, so it is not known"),
    "a loss of any sign": (with_loss, "signs", "the loss signs draws random numbers for the batch as a whole"),
    "a mean of some": (with_loss, "positives", r"\(positives\) is not a mean over samples"),
    "a step's mean of some": (stepping, "positives", NO_MEAN),
    "weights by their mean": (with_loss, "by_mean_weight", r"\(by_mean_weight\) is not a mean over samples"),
    "weights by the batch's classes": (with_loss, "balanced", r"\(balanced\) is not a mean over samples"),
    "the hardest": (with_loss, "hardest", r"\(hardest\) is not a mean over samples"),
    **{f"a threshold, {seed}": (above_mean, seed, r"\(above_their_mean\) is not a mean") for seed in range(6)},
    "those that are chosen": (with_loss, "of_chosen", DIVIDED),
    "a sampled softmax": (sampled, "the train_step draws random numbers for the batch as a whole"),
    "clipping": (stepping, "clipped", NO_MEAN),
    "outputs of pairs": (of_pairs, r"\(in_batch\) is not a mean over samples"),
    "pairs": (stepping, "pairs", NO_MEAN),
    "pairs, with dropout": (stepping, "random pairs", NO_MEAN),
    "a layer of the batch": (adding, "mean", rf"\(your own code: mine\) {NO_MEAN}"),
    "a layer's loss of the batch": (adding, "largest", rf"\(your own code: mine\) {NO_MEAN}"),
    "an activation of the batch": (of_the_batch, "activation", rf"\(your own code: dense\w*\) {NO_MEAN}"),
    "a Lambda of the batch": (of_the_batch, "lambda", rf"\(your own code: mine\) {NO_MEAN}"),
    "a graph's operation": (of_the_batch, "graph", rf"\(your own code: mean\w*\) {NO_MEAN}"),
    "a layer's average": (keeping, "average", KEPT),
    "a layer's largest": (keeping, "largest", KEPT),
    "a maximum": (with_metric, "max", ADDED),
    "maxima": (with_metric, "maxima", ADDED),
    "a moving average": (with_metric, "average", ADDED),
    "a sum of maxima": (with_metric, "sum", "the metric mine does not only add to total a mean or a sum"),
}


@pytest.mark.parametrize(
    ("name", "micro_batches"), [*((name, None) for name in REFUSED), ("another optimizer", (20, 30))]
)
def test_what_would_be_another_training_is_refused(tensorflow: Any, name: str, micro_batches: Any) -> None:
    make, *given, message = REFUSED[name]
    keras.utils.set_random_seed(1)  # a sum with dropout is found for most random weights
    split, model = in_split(make, *given, micro_batches=micro_batches)
    with pytest.raises(BadInput, match=rf"{message}(.|\n)*→"):
        split.fit(model, sentences(240)[0] if name == "a mask" else X, Y, shuffle=False, verbose=0)


def checked(model: Any, x: Any = X, y: Any = Y) -> Any:
    """What the parity check says of a step of the model on these samples."""
    from gpubalance.engine.step import built, parity

    batch = tf.constant(x[:100]), tf.constant(y[:100])
    built.build(model, tf.distribute.get_strategy(), batch, trains=True)
    return parity.check(model, batch, "CPU:0")


@pytest.mark.parametrize("name", TOLD)
def test_what_is_not_exact_is_told(tensorflow: Any, name: str) -> None:
    make, *given, message = TOLD[name]
    keras.utils.set_random_seed(1)  # with few random weights a loss or its gradients are near a mean
    assert re.search(message, "\n".join(checked(make(*given)).warned))


@pytest.mark.parametrize(
    "name", ["two passes", "an output", "Dice", "a layer's average", "a layer's largest", "maxima"]
)
def test_what_is_told_is_trained(tensorflow: Any, name: str) -> None:
    make, *given, message = TOLD[name]
    keras.utils.set_random_seed(1)
    split, model = in_split(make, *given)
    with pytest.warns(UserWarning, match=message):
        split.fit(model, X, Y, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 3
    for variable in model.non_trainable_variables:
        assert len({copy.numpy().tobytes() for copy in variable.value.values}) == 1


def test_a_sum_is_found_with_dropout_and_two_samples(tensorflow: Any) -> None:
    split, model = in_split(stepping, "random sum", batches=(2, 4))
    with pytest.raises(BadInput, match=OF_A_SUM):
        split.fit(model, X[:24], Y[:24], verbose=0)


@pytest.mark.parametrize("name", ["masked", "hardest"])
def test_a_batch_too_small_for_parts_that_need_several_samples_is_trained_whole(tensorflow: Any, name: str) -> None:
    """Of the last four samples a device would get one: it is masked, or the loss wants two."""
    split, model = in_split(with_loss, name)
    at = np.arange(204)
    labels = np.where((name == "masked") & ((at == 7) | (at > 202)), -1, Y[:204])
    with pytest.warns(UserWarning, match="mean"):
        split.fit(model, X[:204], labels, shuffle=False, verbose=0)
    assert all(np.isfinite(variable.numpy()).all() for variable in model.weights)


def own_loss(kind: str) -> Any:
    """A model that counts calls of its own `compute_loss`, whose loss is a mean, or also random, or of mixed signs."""

    class Own(keras.Sequential):  # type: ignore[misc]
        def __init__(self, layers: Any) -> None:
            super().__init__(layers)
            self.calls = self.add_weight(name="calls", initializer="zeros", trainable=False)
            self.drop = keras.layers.Dropout(0.5, seed=1)

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
            del x, y
            self.calls.assign_add(1.0)
            signs = ops.reshape(1.0 - 2.0 * ops.cast(ops.arange(ops.shape(y_pred)[0]) % 2, y_pred.dtype), (-1, 1))
            losses = {"mean": y_pred, "random": self.drop(y_pred, training=True), "signed": y_pred * 0 + signs}[kind]
            return ops.mean(losses)

    return compiled(Own(dense()), None)


def test_trying_a_loss_leaves_no_trace_and_warns_of_no_mean(tensorflow: Any) -> None:
    from gpubalance.engine.step.trial import Trial

    for kind in ("random", "signed"):
        assert "not a mean over samples" not in "".join(checked(own_loss(kind)).warned)
        assert not [one for one in gc.get_objects() if isinstance(one, Trial)]  # nor what TensorFlow keeps for it
    split, model = in_split(own_loss, "mean")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not a mean over samples")
        split.fit(model, X, Y, epochs=2, shuffle=False, verbose=0)
    assert float(model.calls.value.numpy()) == 2 * 3  # steps, and no trial


def regularised() -> Any:
    return model_with(plain, weights="l2")


def of_words() -> Any:
    """A model with a layer of one's own behind an embedding, of whose gradient each batch has other rows."""

    class Doubled(layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return 2 * x

    body = [layers.Embedding(20, 4), layers.Flatten(), Doubled(), layers.Dense(3, "softmax")]
    return compiled([keras.Input((5,), dtype="int32"), *body])


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: stepping(kind) for kind in ("mean", "random mean")),
        *(
            lambda: model_with(rate_before),
            regularised,
            sampling,
            of_words,
            lambda: adding("only"),
            lambda: with_loss("by_ones", "l2"),
        ),
        lambda: keeping("sum"),
    ],
)
def test_code_of_ones_own_that_takes_a_mean_is_trained_in_silence(tensorflow: Any, make: Any) -> None:
    found = checked(make(), *(words(100) if make is of_words else (X, Y)))
    assert (found.warned, found.refused) == ((), None)


def test_of_keras_own_losses_one_by_axis_is_told_and_dice_that_is_exact_is_not(tensorflow: Any) -> None:
    """Over classes that sum to 1 the divisor of Dice is the number of samples."""
    labels = np.eye(3, dtype="float32")[Y]
    assert checked(compiled(dense(), keras.losses.Dice()), y=labels).warned == ()
    told = checked(compiled(dense(), keras.losses.CosineSimilarity(axis=0)), y=labels).warned
    assert "not a mean over samples" in "".join(told)
