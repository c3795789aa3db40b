"""The engine on two unlike GPUs.

It is about what the engine's stamps mean beside what the GPUs did, and whether the host runs
ahead. One process does it all; the tests look at what it told and at the GPUs' trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.fake_gpu import Fault, Gpu, Operation, operations
from tests.support.cases import cases

pytestmark = pytest.mark.xdist_group("engine on GPUs")

# Stamps of a step in order, as gpubalance.engine.step.points has them, which loads TensorFlow.
BEGAN, COMPUTED, SUMMED, FINISHED = range(4)
TOO_LARGE = 30_000  # of 3 KiB a sample
NO_ALGORITHM = 40
FAULTS = (Fault("no_algorithm", "Conv2D", samples=NO_ALGORITHM),)
SLOWER = Gpu("the slower", 64 << 20, gflops=0.001, faults=FAULTS)
GPUS = (Gpu("the faster", 64 << 20, gflops=0.004), SLOWER)
PROGRAM = f"""
import json
from gpubalance.settings.batch_split import BatchSplit
from tests.fake_gpu import inside
session, split, in_parts = inside.session(pack_bytes=256), BatchSplit((16, 8)), BatchSplit((16, 8), (4, 4))
TOO_MUCH = ({TOO_LARGE}, 8), (8, {TOO_LARGE}), (8, {NO_ALGORITHM})
print(json.dumps({{
    "stamped": inside.steps(session, split, 5),
    "in micro-batches": inside.steps(session, in_parts, 2),
    "failures": [inside.failure(session, batches) for batches in TOO_MUCH],
    "again": inside.steps(session, split, 1),
    "alone": inside.steps(inside.session(1), BatchSplit((16,)), 5),
}}))
"""


@dataclass(frozen=True)
class Step:
    """A step of one GPU: its stamps in seconds, and what the GPU did in it.

    What it did is in the order of its start.
    """

    stamps: list[float]
    done: list[Operation]

    @property
    def sums(self) -> list[Operation]:
        """The sums of gradients."""
        return [one for one in self.done if "CollectiveReduce" in one.name]

    def first(self, name: str = "", kind: str = "") -> Operation:
        """The first operation of that kind, with this text in its name."""
        return next(one for one in self.done if name in one.name and kind in one.kind)

    def last(self, text: str) -> Operation:
        """The last kernel with this text in its name or its node's."""
        return [one for one in self.done if text in one.name or text in one.node][-1]


@pytest.fixture(scope="module")
def stamped(told: dict[str, Any], machine: dict[str, str]) -> list[list[Step]]:
    """The stamped steps, and of each the two GPUs' parts."""
    return parts_of(told["stamped"], machine)


def parts_of(steps: list[dict[str, Any]], machine: dict[str, str]) -> list[list[Step]]:
    """Of each step the two GPUs' parts."""
    trace = operations(machine)
    found = []
    for step in steps:
        began_s, ended_s = step["began_s"], step["ended_s"]
        done = [one for one in trace if began_s <= one.queued_at_s <= ended_s]
        by_device = [[one for one in done if one.device == device] for device in (0, 1)]
        pairs = zip(step["stamps"], by_device, strict=True)
        found.append([Step(*part) for part in pairs])
    return found


def test_the_host_queues_a_step_while_the_one_before_it_computes(
    told: dict[str, Any], machine: dict[str, str]
) -> None:
    """So the GPU does not wait for its first kernels.

    With several GPUs the host itself waits for their sum. On a busy machine the host is late now
    and then; if each step waited, it would never be ahead.
    """
    of_first = [one for one in operations(machine) if one.device == 0]
    kernels = [one for one in of_first if one.kind == "kernel"]
    for step in told["alone"]:
        at_s = step["began_s"]
        if any(one.queued_at_s < at_s < one.ends_s for one in kernels):
            return  # the GPU is busy with what was queued before
    pytest.fail("the host waited for each step")


def test_a_step_begins_before_its_first_kernel(stamped: list[list[Step]]) -> None:
    """Its stamp is copied to the host before that, unless a busy host is late once.

    If it came behind the kernel, it would never be early.
    """
    for device in (0, 1):
        steps = [parts[device] for parts in stamped]
        firsts = [(one.first(kind="to_host"), one.first("Conv2D")) for one in steps]
        assert any(stamp.starts_s <= kernel.starts_s for stamp, kernel in firsts)


def test_without_stamps_nothing_is_copied(
    told: dict[str, Any], machine: dict[str, str]
) -> None:
    trace = operations(machine)
    steps = [*told["stamped"], *told["alone"]]
    for step in steps:
        begins_s, ends_s = step["usual_s"], step["began_s"]
        done = {one.kind for one in trace if begins_s <= one.queued_at_s < ends_s}
        assert "kernel" in done
        assert "to_host" not in done


def test_a_stamp_comes_after_all_that_it_tells_of(stamped: list[list[Step]]) -> None:
    for step in (part for parts in stamped for part in parts):
        assert step.last("gradient_tape").ends_s <= step.stamps[COMPUTED]
        assert step.last("CollectiveReduce").ends_s <= step.stamps[SUMMED]
        assert step.last("ResourceApply").ends_s <= step.stamps[FINISHED]


def test_the_faster_one_has_its_gradients_earlier(stamped: list[list[Step]]) -> None:
    """On a busy machine the host gives the faster one its work late now and then."""
    gradients = [slower.last("gradient_tape").ends_s for _, slower in stamped]
    computed = [faster.stamps[COMPUTED] for faster, _ in stamped]
    assert any(map(float.__lt__, computed, gradients))


@cases("how", "stamped", "in micro-batches")
def test_gradients_are_summed_while_others_are_computed(
    how: str, told: dict[str, Any], machine: dict[str, str]
) -> None:
    """They are summed in packs, the last layers' first.

    The slower GPU's own gradients are the last that any sum waits for. A busy host may be late with
    a sum, but not with each.
    """
    slower_parts = [slower for _, slower in parts_of(told[how], machine)]
    assert all(len(part.sums) > 2 for part in slower_parts)
    pairs = [(part.sums[0], part.last("gradient_tape")) for part in slower_parts]
    assert any(first.ends_s < last.starts_s for first, last in pairs)


def test_who_lacks_memory_is_told_whatever_says_so(told: dict[str, Any]) -> None:
    """Two copies of samples do not fit, nor does a convolution.

    One copy is to the first GPU; the other one and the convolution are on the second.
    """
    assert [failure["replica"] for failure in told["failures"]] == [0, 1, 1]
    assert {failure["kind"] for failure in told["failures"]} == {"OutOfMemory"}


def test_both_train_on_afterwards(
    told: dict[str, Any], machine: dict[str, str]
) -> None:
    (parts,) = parts_of(told["again"], machine)
    assert all(step.last("ResourceApply") for step in parts)
