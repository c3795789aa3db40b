"""What `run` measures is what `Split.fit` trains.

It is the same traced step, and the same words are said about it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest

from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import JointProfile
from gpubalance.settings.settings import Settings
from tests.engine.steps import IN_SMALL_PACKS
from tests.training.cases import simulated
from tests.training.steps import MODELS

SPLIT = BatchSplit((70, 30))
FIRST = "augmentation"
EVERY = []
for model in MODELS:
    marks = [] if model == FIRST else [pytest.mark.full]
    EVERY.append(pytest.param(model, marks=marks))


def operations(functions: Any) -> Counter[Any]:
    """The operations of the step that was traced, with the types and shapes of what they give."""
    (step,) = [
        made.once
        for (what, _, _), (_, made) in functions._traced.items()
        if what == "train"
    ]
    return Counter(
        (op.type, tuple((one.dtype, str(one.shape)) for one in op.outputs))
        for op in step.graph.get_operations()
    )


@pytest.mark.parametrize("name", EVERY)
def test_the_step_that_is_measured_is_the_one_that_is_trained(name: str) -> None:
    from gpubalance.engine.session import Session

    number = list(MODELS).index(name)
    split = simulated(SPLIT.batches)
    own = {what: f"tests.training.steps:{what}_{number}" for what in ("model", "data")}
    settings = Settings(**own, pack_bytes=IN_SMALL_PACKS.pack_bytes)
    session = Session(split.devices, settings, JointProfile(), seed=0)
    next(
        session.measure(SPLIT, seconds=0, at_least=1, steps_per_timing=1, stamped=False)
    )
    make, data = MODELS[name]
    with split.scope():
        model = make()
    x, y, sample_weight = (*data(200), None)[:3]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        split.fit(model, x, y, sample_weight=sample_weight, verbose=0, shuffle=False)
    functions: Any = split.functions_of(model)[-1]
    assert operations(session._built.functions) == operations(functions._functions)
    assert (
        session.facts()["model"]["step"]
        == functions._functions._decompositions["train"].fingerprint
    )
    of_split = [
        str(warning.message)
        for warning in told
        if issubclass(warning.category, UserWarning)
    ]
    unnumbered = [text.replace(model.name, "") for text in of_split]
    assert unnumbered == [
        text.replace(session._built.model.name, "")
        for text in session.facts()["verdict"].warned
    ]
    assert not of_split
