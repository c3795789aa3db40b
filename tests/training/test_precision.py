"""A plan's precision is what its model trains in, and another one is told."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from gpubalance.errors import UsageError
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.settings.choices import Precision
from gpubalance.training.split import Split, load_layers, load_plan
from tests.cli.program import QUICK_PAIR
from tests.render.samples import DATA
from tests.support.altered import altered
from tests.support.late import keras, tf
from tests.support.told import refused, warned, warnings_of
from tests.training.models import classifier
from tests.training.plans import planned
from tests.training.samples import numbers

X, Y = numbers(96)
POLICY = "so its scope sets the policy"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """They are the whole process's."""
    yield
    keras.config.set_floatx("float32")
    set_here("float32", tf32=True)


def set_here(policy: str, *, tf32: bool) -> None:
    keras.config.set_dtype_policy(policy)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)


def planned_in(precision: Precision) -> Plan:
    return altered(planned(None, {"precision": precision}, global_batch=48), model=None)


@pytest.mark.parametrize("precision", get_args(Precision))
def test_the_plans_precision_rules_in_its_scope(tmp_path: Path, precision: Any) -> None:
    policy = precision if "mixed" in precision else "float32"
    tf32 = precision != "float32"
    set_here("float32", tf32=not tf32)
    path = tmp_path / "plan.json"
    path.write_text(planned_in(precision).model_dump_json())
    split = load_plan(path, simulate=QUICK_PAIR)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with split.scope():
            model = classifier()()
        assert tf.config.experimental.tensor_float_32_execution_enabled() is tf32
        assert model.layers[0].dtype_policy.name == policy
        if precision == "mixed_float16":
            split.fit(model, X, Y, verbose=0)


@pytest.mark.bfloat16
def test_another_precision_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    split = load_plan(planned_in("float32"), simulate=QUICK_PAIR)
    with split.scope():
        model = classifier()()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    told = r"the split was measured in float32, but the model .* trains in tf32: .* --precision tf32 finds"
    with pytest.warns(UserWarning, match=told):
        split.fit(model, X, Y, verbose=0)
    with split.scope():
        keras.config.set_dtype_policy("mixed_bfloat16")
        other = classifier()()
    with warned("measured in float32, but the model .* trains in mixed_bfloat16"):
        split.fit(other, X, Y, verbose=0)
    assert warnings_of(lambda: split.fit(model, X, Y, verbose=0)) == []  # it was said
    tf.config.experimental.enable_tensor_float_32_execution(False)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with warned("was measured without NVIDIA_TF32_OVERRIDE, which"):
        split.fit(model, X, Y, verbose=0)


def test_a_policy_that_the_script_has_set_is_replaced_with_a_warning() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    told = f"{POLICY} float32 instead of mixed_float16; gpubalance balance --precision mixed_float"
    with warned(told), load_plan(planned_in("tf32"), simulate=QUICK_PAIR).scope():
        assert keras.config.dtype_policy().name == "float32"


def test_stages_train_in_the_precision_that_they_were_cut_in() -> None:
    cut = Layers.model_validate_json((DATA / "pair-layers.json").read_text())
    settings = cut.settings.model_copy(update={"precision": "mixed_bfloat16"})
    with pytest.warns(UserWarning, match="for simulated devices"):
        stages = load_layers(cut.model_copy(update={"settings": settings}))
    with stages.scope():
        assert keras.config.dtype_policy().name == "mixed_bfloat16"


def test_a_split_by_hand_leaves_the_precision_to_the_script() -> None:
    """A split by hand leaves the precision to the script or sets its own."""
    set_here("mixed_bfloat16", tf32=False)
    with Split(batches=[8, 4], simulate=2).scope():
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    with Split(batches=[8, 4], simulate=2, precision="mixed_bfloat16").scope():
        assert tf.config.experimental.tensor_float_32_execution_enabled()
    half = "precision is 'half'\n  → give float32, tf32, mixed_float"
    with refused(half, UsageError):
        Split(batches=[8, 4], simulate=2, precision="half")  # type: ignore[arg-type]


def test_layers_of_other_dtypes_say_nothing_of_the_precision() -> None:
    """Hashing has integers by Keras' own default, and one layer may be of float64."""
    from gpubalance.training.measured import precision_mismatch_text

    layers = keras.layers
    hashed = [keras.Input((6,), dtype="int32"), layers.Hashing(8)]
    hashed += [layers.Embedding(8, 4), layers.Flatten()]
    wide = [keras.Input((6,)), layers.Dense(4, dtype="float64")]
    split = load_plan(planned_in("tf32"), simulate=QUICK_PAIR)
    for first in (hashed, wide):
        with split.scope():
            model = keras.Sequential([*first, layers.Dense(3, "softmax")])
            model.compile("sgd", "sparse_categorical_crossentropy")
        assert precision_mismatch_text(model, "tf32") == ""
        tf.config.experimental.enable_tensor_float_32_execution(False)
        # Its other layers
        assert "trains in float32" in precision_mismatch_text(model, "tf32")


def test_a_script_of_another_floatx_trains_in_it() -> None:
    keras.config.set_floatx("float64")
    # As Keras itself has it when a script begins so
    keras.config.set_dtype_policy("float64")
    split = load_plan(planned_in("tf32"), simulate=QUICK_PAIR)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with split.scope():
            model = classifier()()
        split.fit(model, X, Y, verbose=0)
    assert {weight.dtype for weight in model.layers[0].weights} == {"float64"}
