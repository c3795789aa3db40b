"""Training with XLA gives what one device gives; what it compiles, and what it can't, is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpubalance.training.split import Split
from tests.support.altered import altered
from tests.support.late import keras, tf
from tests.support.told import refused, warned
from tests.training.cases import CASES, apart, in_split, in_turn, simulated
from tests.training.models import adamw, classifier, compiled, dense
from tests.training.plans import planned
from tests.training.samples import numbers

X, Y = numbers(280)
COMPILED = {"jit_compile": True}


def kinds(split: Split, model: Any) -> set[bool]:
    """Whether steps that were traced for training use XLA."""
    functions: Any = split.functions_of(model)[-1]
    traced = functions._functions._traced
    return {kind.xla for what, _, kind in traced if what == "train"}


def test_a_compiled_split_gives_what_one_device_gives() -> None:
    case = CASES["train_step of one's own"]
    split = simulated((70, 30), (20, 30))
    models = []

    def make() -> Any:
        models.append(case.make())
        models[-1].jit_compile = True
        return models[-1]

    (found,) = in_turn(replace(case, make=make), split, [80])
    assert max(found.weights, found.logs) < 1e-5
    assert kinds(split, models[-1]) == {True, False}  # without for the short last batch


@pytest.mark.full
def test_rare_sizes_train_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    split, model = in_split(classifier("adam", compiled=COMPILED))
    with warned(r"trains batches of 56/24 without XLA: XLA compiles") as told:
        split.fit(model, X, Y, epochs=2, verbose=2, callbacks=[split.monitor(every=2)])
    assert len([one for one in told if "XLA" in str(one.message)]) == 1
    split.fit(model, X[:150], Y[:150], verbose=0)  # one of 35/15, which is as rare
    assert len([text for text in split.warned if "without XLA" in text]) == 1
    printed = capsys.readouterr().out
    # Once for the step, once for the stamped one.
    assert printed.count("XLA compiles the step for 70/30 …\n… it took ") == 2
    assert kinds(split, model) == {True, False}
    # Five batches of a size that was rare: it comes often now.
    split.fit(model, X[:240], Y[:240], batch_size=80, epochs=2)
    # Below the progress bar.
    assert "\nXLA compiles the step for 56/24 …\n… it" in capsys.readouterr().out


def printing() -> Any:
    """A model that XLA can't compile, with its line."""

    class Printing(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            text = tf.strings.as_string(tf.stop_gradient(x))  # here
            return x + 0 * tf.strings.to_number(text)

    first, *others = dense()
    return compiled([first, Printing(), *others], optimizer=adamw())


def of_plan(*, xla: bool) -> Split:
    """The split of a plan for two devices, measured with XLA or without."""
    made = planned(None, {"xla": xla}, accumulate=1, sync_s=0.0)
    split = simulated((70, 30))
    split.plan = altered(made, model=None)
    return split


@pytest.mark.full
def test_what_xla_cannot_compile_is_named_and_refused() -> None:
    """What XLA cannot compile is named and refused unless it was left to Keras."""
    split = of_plan(xla=True)
    with split.scope():
        model = printing()
    alone = printing()
    alone.set_weights(model.get_weights())
    alone.fit(X[:200], Y[:200], batch_size=100, shuffle=False, verbose=0)
    with warned(r"(?s)AsString .*# here.*So it trains without XLA"):
        split.fit(model, X[:200], Y[:200], shuffle=False, verbose=0)
    assert kinds(split, model) == {True, False}
    # The failed step has left nothing: AdamW's weights would decay twice.
    assert model.optimizer.iterations.numpy() == 2
    assert apart(model, alone) < 1e-5
    with split.scope():
        asked = printing()
        asked.jit_compile = True
        normalised = CASES["synchronised batch norm"].make()
        normalised.jit_compile = True
    with refused(r"(?s)its operation AsString .*# here.*jit_compile=False"):
        split.fit(asked, X[:200], Y[:200], verbose=0)
    with refused("synchronises batch normalisation in the middle of a step: XLA"):
        split.fit(normalised, X[:200], Y[:200], verbose=0)


@pytest.mark.full
def test_a_model_is_compiled_as_its_plan_was_measured() -> None:
    """A model is compiled as its plan was measured unless it says otherwise."""
    split = of_plan(xla=True)
    with split.scope():
        silent = classifier("adam")()
        without = classifier("adam", compiled={"jit_compile": False})()
    split.fit(silent, X[:200], Y[:200], verbose=0)
    assert kinds(split, silent) == {True}
    with warned(r"measured with XLA, .* balance --no-xla finds"):
        split.fit(without, X[:200], Y[:200], verbose=0)
    assert kinds(split, without) == {False}
    split = of_plan(xla=False)
    with split.scope():
        asked = classifier("adam", compiled=COMPILED)()
    with warned(r"measured without XLA, .* balance --xla finds"):
        split.fit(asked, X[:200], Y[:200], verbose=0)
    assert kinds(split, asked) == {True}
