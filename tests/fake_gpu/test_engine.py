"""The engine on two unlike GPUs: what its stamps mean beside what the GPUs did, and whether the host runs ahead.

One process does it all; the tests look at what it told and at the GPUs' trace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from gpubalance.engine.step.points import BEGAN, COMPUTED, FINISHED, SUMMED
from tests.fake_gpu import Gpu, Operation, child, fake_gpus, operations

# The first convolution takes 7 ms on the faster GPU, by which its stamp may come too late on a busy machine.
GPUS = (Gpu("the faster", gflops=0.004), Gpu("the slower", gflops=0.001))
PROGRAM = """
import json
from gpubalance.settings.shares import Shares
from tests.fake_gpu import inside
session, split = inside.session(), Shares((16, 8))
print(json.dumps({kind: inside.steps(session, split, 5, stamped=kind == "stamped") for kind in ("usual", "stamped")}))
"""


@dataclass(frozen=True)
class Step:
    """A step of one GPU: its stamps in seconds, and what the GPU did in it, in the order of its start."""

    stamps: list[float]
    done: list[Operation]

    def first(self, *names: str) -> Operation:
        """The first kernel or sum with one of these names in its own."""
        return next(one for one in self.done if any(name in one.name for name in names))

    def last(self, text: str) -> Operation:
        """The last kernel with this text in its name or its node's."""
        return [one for one in self.done if text in one.name or text in one.node][-1]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Step]]]:
    """The usual and the stamped steps, and of each the two GPUs' parts."""
    variables = fake_gpus(tmp_path_factory.mktemp("engine"), *GPUS)
    told = json.loads(child(PROGRAM, variables).splitlines()[-1])
    trace = operations(variables)
    return {kind: [_parts(step, trace) for step in steps] for kind, steps in told.items()}


def _parts(step: dict[str, Any], trace: list[Operation]) -> list[Step]:
    done = [one for one in trace if step["began_s"] <= one.queued_at_s <= step["ended_s"]]
    by_device = [[one for one in done if one.device == device] for device in (0, 1)]
    return [Step(*part) for part in zip(step["stamps"], by_device, strict=True)]


def test_a_step_begins_before_its_first_kernel(told: dict[str, list[list[Step]]]) -> None:
    """The host may hear of it late, but not always."""
    for device in (0, 1):
        steps = [parts[device] for parts in told["stamped"]]
        early = [step.stamps[BEGAN] < step.first("Conv2D").ends_s for step in steps]
        assert sum(early) > len(steps) / 2


def test_a_stamp_comes_after_all_that_it_tells_of(told: dict[str, list[list[Step]]]) -> None:
    for step in (part for parts in told["stamped"] for part in parts):
        assert step.last("gradient_tape").ends_s <= step.stamps[COMPUTED]
        assert step.first("CollectiveReduce").ends_s <= step.stamps[SUMMED]
        assert step.last("AssignSubVariableOp").ends_s <= step.stamps[FINISHED]


def test_the_faster_gpu_has_its_gradients_while_the_slower_computes(told: dict[str, list[list[Step]]]) -> None:
    early = [faster.stamps[COMPUTED] < slower.last("gradient_tape").ends_s for faster, slower in told["stamped"]]
    assert sum(early) > len(early) / 2
