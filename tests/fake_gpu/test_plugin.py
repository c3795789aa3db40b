"""The fake GPUs themselves: order, time, memory and faults are as a GPU's.

That values are is tested in test_training.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.fake_gpu import Fault, Gpu, Operation, child_process, fake_gpus, operations

pytestmark = pytest.mark.xdist_group("plugin")

MIB = 1 << 20
MEMORY = 300 * MIB
# Their kernels take 20 ms each, and their link takes 0.4 s for 800 KiB.
FIRST = Gpu("First", memory_bytes=MEMORY, kernel_ms=20.0, pcie_gbytes_per_s=0.002)
GPUS = FIRST, replace(FIRST, name="Second", bus="00000000:0A:00.0")
PROGRAM = """
import json
from tests.fake_gpu import on_gpus
print(json.dumps(on_gpus.all_of_it()))
"""


@pytest.fixture(scope="module")
def trace(machine: dict[str, str], told: dict[str, Any]) -> list[Operation]:
    """What its GPUs have done."""
    return operations(machine)


def test_tensorflow_describes_them_as_cuda_s(told: dict[str, Any]) -> None:
    cards = ("0, name: First", "01"), ("1, name: Second", "0A")
    for gpu, (card, bus) in zip(told["descriptions"], cards, strict=True):
        where = f"pci bus id: 0000:{bus}:00.0, compute capability: 8.6"
        assert gpu["told"] == f"device: {card}, {where}"


def test_the_host_runs_ahead_of_a_stream_and_waits_for_it_to_read(
    told: dict[str, Any], trace: list[Operation]
) -> None:
    began_s, read_s = told["products"]["began_s"], told["products"]["read_s"]
    done = [one for one in trace if began_s <= one.queued_at_s <= read_s]
    products = [one for one in done if one.name == "MatMul"]
    assert len(products) == 10
    pairs = list(pairwise(products))
    assert all(later.starts_s >= earlier.ends_s for earlier, later in pairs)
    # A busy host is late now and then; if it waited for each, it would always be.
    assert any(later.queued_at_s < earlier.ends_s for earlier, later in pairs)
    read = next(one for one in done if one.kind == "to_host")
    assert products[-1].ends_s <= read.starts_s
    assert read.ends_s <= read_s


def test_a_sum_has_its_own_stream(told: dict[str, Any], trace: list[Operation]) -> None:
    """A sum begins when the values of both GPUs are there; meanwhile each GPU computes.

    Sums are made one after another.
    """
    assert told["sums"] == [[6.0, 6.0], [8.0, 8.0]]
    for device in (0, 1):
        own = [one for one in trace if one.device == device]
        first, second = [one for one in own if one.kind == "all_reduce"][-2:]
        beside = [one for one in own if "beside_the_sum" in one.node][-40:]
        assert first.stream == "collective"
        assert first.ends_s <= second.starts_s
        assert any(first.starts_s < kernel.starts_s < first.ends_s for kernel in beside)
        assert {kernel.stream for kernel in beside} == {"compute"}
        for values in [one for one in trace if "summed_values" in one.node][-2:]:
            assert values.ends_s <= first.starts_s


def test_memory_ends_with_its_own(told: dict[str, Any], trace: list[Operation]) -> None:
    limit = told["descriptions"][1]["memory_bytes"]
    found = told["out_of_memory"]
    assert limit - MIB < found["peak"] <= limit < MEMORY
    told_of = "OOM when allocating tensor with shape[256,1024] and type float"
    assert told_of in found["says"]
    assert "device:GPU:1" in found["says"]
    taken = [one.bytes for one in trace if one.kind == "allocate" and one.device == 1]
    assert sum(taken) <= limit


BROKEN = """
import json
import tensorflow as tf
from tests.fake_gpu import on_gpus
print(json.dumps([on_gpus.parts(), on_gpus.hangs()]), flush=True)
with tf.device("GPU:0"):
    print(tf.cos(tf.ones(2)).numpy())
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> CompletedProcess[str]:
    """A process with two GPUs that have faults, and a third one in two parts."""
    first = Gpu(faults=(Fault("illegal_address", "Cos"),))
    gpus = first, Gpu(faults=(Fault("hang", "Sin"),)), Gpu()
    return child_process(BROKEN, fake_gpus(tmp_path_factory.mktemp("broken"), *gpus))


def test_a_gpu_in_parts_has_the_memory_of_each(broken: CompletedProcess[str]) -> None:
    peaks, _ = json.loads(broken.stdout)
    for peak, limit in zip(peaks, (20 * MIB, 40 * MIB), strict=True):
        assert limit - MIB < peak <= limit


def test_an_operation_hangs_and_an_illegal_address_ends_the_process(
    broken: CompletedProcess[str],
) -> None:
    _, hangs = json.loads(broken.stdout)
    assert hangs
    assert broken.returncode < 0
    told = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
    assert told in broken.stderr
