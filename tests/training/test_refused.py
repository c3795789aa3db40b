"""What a split can't train, or not on this data, is told in a sentence with what to do."""

from __future__ import annotations

from typing import Any

import gpubalance
from gpubalance.errors import EnvironmentFault
from gpubalance.training.split import Split
from tests.support.cases import cases, full
from tests.support.late import keras, layers, optimizers, tf
from tests.support.told import refused, warned
from tests.training.cases import CASES, in_split, simulated
from tests.training.models import classifier, compiled, subclassed
from tests.training.samples import numbers

X, Y = numbers(240)


def test_a_model_from_elsewhere_is_refused_with_what_to_do() -> None:
    split = simulated((70, 30))
    outside = r"was built outside this split's scope\(\)"
    with refused(rf"{outside}(.|\n)*→ build .* inside `with split\.scope\(\):`"):
        split.fit(classifier()(), X, Y)
    split, model = in_split()
    too_many = r"fewer CPU devices than 9(.|\n)*with several splits, enter the largest one's scope first"
    with refused(too_many, EnvironmentFault) as caught:
        simulated((1,) * 9).scope()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert len(caught.traceback) == 2  # this line, and the scope
    with refused("a batch of 1 has fewer samples than the 2 devices"):
        split.fit(model, X, Y, batch_size=1)
    model.compile("adam", "mse")
    again = r"the model compiled, outside this split's scope(.|\n)*→ compile it again inside the scope, with"
    with refused(f"the optimizer of the model .* was made, or {again} a new op"):
        split.fit(model, X, Y)
    with split.scope():
        model = classifier("adam")()
        with refused(r"called inside `with split\.scope\(\):`"):
            split.fit(model, X, Y)
        with refused("entered inside the scope of other devices"):
            simulated((10, 60, 30)).scope()
    layer = layers.Dense(3, "softmax")
    layer.build((None, 6))
    with split.scope():
        model = compiled([keras.Input((6,)), layer])
    with refused(f"the layer {layer.name} of the model"):
        split.fit(model, X, Y)
    # Of other simulated devices it is refused as it would be on GPUs.
    with Split([0, 1], batches=[70, 30], simulate=3).scope():
        model = classifier()()
    with refused(outside):
        Split([1, 2], batches=[70, 30], simulate=3).fit(model, X, Y, verbose=0)
    Split([0, 1], batches=[30, 70], simulate=3).fit(model, X, Y, verbose=0)


def test_a_label_that_is_no_class_is_refused_without_a_warning(recwarn: Any) -> None:
    model, validated = in_split()[1], in_split()[1]
    has = r"contains the label \(y\) 3, but the model has 3 classes: 0 to 2"
    text = rf"{has}\n  → number the classes"
    with refused(text):
        model.fit(X, Y + 1, verbose=0)
    with refused(text):
        validated.fit(X, Y, validation_data=(X, Y + 1), verbose=0)
    assert not [one for one in recwarn if "can't be tried" in str(one.message)]


@cases("before", "call", "nothing", "predict", "call in the scope")
def test_a_subclass_gets_its_variables_in_the_scope_or_is_refused(before: str) -> None:
    split, model = in_split(subclassed)
    with split.scope():
        if before == "call in the scope":
            model(X[:1])
    if before == "predict":
        model.predict(X[:1], verbose=0)
    if before != "call":
        model.fit(X, Y, verbose=0)
        return
    model(X[:1])
    outside = r"called or built outside it first: its layer dense\w* created its variables there"
    with refused(rf"^the model \w+ was .*, but {outside}\n  → build the model anew"):
        model.fit(X, Y, verbose=0)


def test_a_scope_is_entered_again_and_its_models_are_its_splits() -> None:
    first, second = simulated((70, 30)), simulated((30, 70))
    of_first = first.scope()
    second.scope()
    with of_first, of_first:
        before = classifier()()
    with of_first:
        model = classifier()()
    assert not tf.distribute.has_strategy()
    assert all(first.functions_of(one) == [] for one in (before, model))
    for one in (before, model):
        one.fit(X, Y, verbose=0)
        assert (len(first.functions_of(one)), second.functions_of(one)) == (1, [])


def test_what_a_split_cannot_do_is_told_in_a_sentence() -> None:
    split = simulated((70, 30))
    with split.scope():
        of_average = optimizers.Adam(use_ema=True, ema_overwrite_frequency=2)
        averaging = classifier(of_average)()
        accumulating = classifier(optimizers.SGD(0.5, gradient_accumulation_steps=2))()
        memory = layers.LSTM(4, stateful=True, name="memory")
        stateful = keras.Sequential([keras.Input(batch_shape=(100, 3, 2)), memory])
        eager = classifier("adam", compiled={"run_eagerly": True})()
        scaled = classifier()()
        scaled.layers[0].quantize("float8")
    names = "ema_overwrite_frequency", "gradient_accumulation_steps"
    for model, what in zip((averaging, accumulating), names, strict=True):
        with refused(f"optimizer sets {what}, which Keras does not support over"):
            split.fit(model, X, Y, verbose=0)
    of_layer = r"^the layer dense\w* of the model \w+ passes new values of its input"
    with refused(rf"{of_layer}s_scale as gradients, as float8 does"):
        split.fit(scaled, X, Y, verbose=0)
    split.evaluate(scaled, X, Y, verbose=0)
    with refused(r"the layer memory of the model .* is stateful"):
        split.predict(stateful, X.reshape(-1, 3, 2)[:100], verbose=0)
    with warned("set to run eagerly, but with a split its steps are traced"):
        split.fit(eager, X, Y, verbose=0)


def test_what_cannot_be_trained_on_is_told_in_a_sentence() -> None:
    (split, trained), by_ratios = in_split(), Split(ratios=[7, 3], simulate=2)
    samples = tf.data.Dataset.from_tensor_slices((X, Y))
    split.fit(trained, X, Y, verbose=0)
    with split.scope():
        untrained = classifier()()
    none = (X[:0], Y[:0]), (samples.take(0),), (samples.filter(lambda *_: False),)
    short = samples.take(20).batch(64, drop_remainder=True)
    for model in (trained, untrained):
        for nothing in none:
            with refused("the data has no samples"):
                split.fit(model, *nothing, verbose=0)
        with refused(r"no samples\n  → batch\(…, drop_remainder=True\) drops"):
            split.fit(model, short, verbose=0)
        for call in (split.fit, split.evaluate):
            for unlabelled in (X, samples.map(lambda *parts: parts[0])):
                with refused(r"the data has no labels \(y\)\n"):
                    call(model, unlabelled, verbose=0)
    with refused("there is no data: x is None"):
        split.fit(trained)
    with refused(r"the data \(x\) is a model\n  → give arrays"):
        split.fit(trained, trained, X, Y)
    with refused(r"Incompatible shapes(.|\n)*fixed batch size(.|\n)*→ read the batch"):
        with split.scope():
            rows = layers.Lambda(lambda x: tf.reshape(x, (100, 6)), output_shape=(6,))
            fixed = keras.Sequential([keras.Input((6,)), rows, layers.Dense(1)])
            fixed.compile("sgd", "mse")
        split.fit(fixed, X[:200], X[:200, :1], verbose=0)
    for data in ({"x": samples}, {"x": X, "y": Y, "validation_data": samples}):
        with refused(r"gives single samples(.|\n)*→ batch it: dataset\.batch\(1000\)"):
            by_ratios.fit(trained, **data, verbose=0)
    with refused(r"split\.predict takes a Keras model first, and got .* ndarray\n"):
        split.predict(X)
    with refused(r"gpubalance\.distribute takes a Keras model first, .* NoneType\n"):
        gpubalance.distribute(None, ratios=[4, 3], simulate=2)


IN_PARTS = ["synchronised batch norm", "reduction mean_with_sample_weight"]
MARKED = [full(name) for name in IN_PARTS]


@cases("name", "masked sentences", *MARKED)
def test_what_micro_batches_cannot_do_is_refused(name: str) -> None:
    case = CASES[name]
    x, y, weights = (*case.data(200), None)[:3]
    split, model = in_split(case.make, micro_batches=(20, 30))
    with refused("micro-batches"):
        split.fit(model, x, y, sample_weight=weights, verbose=0)
