"""The fake GPUs themselves: sums, memory and faults are as a GPU's.

That values are is tested in test_training.py.
"""

from __future__ import annotations

import json
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.fake_gpu import Fault, Gpu, Operation, child_process, fake_gpus, operations

pytestmark = pytest.mark.xdist_group("plugin")

MIB = 1 << 20
# Their kernels take 20 ms each, and their link takes 0.4 s for 800 KiB.
GPUS = (Gpu(memory_bytes=300 * MIB, kernel_ms=20.0, pcie_gbytes_per_s=0.002),) * 2
PROGRAM = """
import json
from tests.fake_gpu import on_gpus
print(json.dumps(on_gpus.all_of_it()))
"""


@pytest.fixture(scope="module")
def trace(machine: dict[str, str], told: dict[str, Any]) -> list[Operation]:
    """What its GPUs have done."""
    return operations(machine)


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
