"""What `run` measures is what `Split.fit` trains.

It is the same traced step, and the same words are said about it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import JointProfile
from gpubalance.settings.settings import Settings
from tests.engine.steps import IN_SMALL_PACKS
from tests.support.cases import cases, full
from tests.support.told import warnings_of
from tests.training.cases import simulated
from tests.training.steps import MODELS

SPLIT = BatchSplit((70, 30))
FIRST, *OTHERS = MODELS


def operations(functions: Any) -> Counter[Any]:
    """The operations of the step that was traced, with the types and shapes of what they give."""
    traced = functions._traced.items()
    (step,) = [made.once for (what, _, _), (_, made) in traced if what == "train"]
    found: Counter[Any] = Counter()
    for op in step.graph.get_operations():
        outputs = tuple((one.dtype, str(one.shape)) for one in op.outputs)
        found[op.type, outputs] += 1
    return found


@cases("name", FIRST, *map(full, OTHERS))
def test_the_step_that_is_measured_is_the_one_that_is_trained(name: str) -> None:
    from gpubalance.engine.session import Session

    number = list(MODELS).index(name)
    split = simulated(SPLIT.batches)
    own = {what: f"tests.training.steps:{what}_{number}" for what in ("model", "data")}
    settings = Settings(**own, pack_bytes=IN_SMALL_PACKS.pack_bytes)
    session = Session(split.devices, settings, JointProfile(), seed=0)
    how: Any = {"seconds": 0, "at_least": 1, "steps_per_timing": 1, "stamped": False}
    next(session.measure(SPLIT, **how))
    make, data = MODELS[name]
    with split.scope():
        model = make()
    given = data(200)
    told = warnings_of(lambda: split.fit(model, *given, verbose=0), __file__)
    assert told == list(session.facts()["combine_rules"].warned) == []
    functions: Any = split.functions_of(model)[-1]
    assert operations(session._built.functions) == operations(functions._functions)
    decomposed = functions._functions._combine_rules_of_all["train"]
    assert session.facts()["model"]["step"] == decomposed.fingerprint
