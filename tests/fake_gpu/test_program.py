"""The program sees the fake GPUs as it would GPUs, in whatever order and whichever of them it may use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.program import SHORT, TINY, gpubalance
from tests.fake_gpu import Gpu, fake_gpus, operations

# What TensorFlow's CUDA has for the first one: none of NVML's UUIDs, as the last line of a key is the plugin's.
UNKNOWN = "uuid GPU-ffffffff-0000-4000-8000-000000000000"
GPUS = (
    Gpu("NVIDIA GeForce GTX 750", uuid="GPU-75000000-0000-4000-8000-000000000000", more=(UNKNOWN,)),
    Gpu("NVIDIA GeForce RTX 3050", uuid="GPU-30500000-0000-4000-8000-000000000000"),
    Gpu("NVIDIA GeForce RTX 3060", uuid="GPU-30600000-0000-4000-8000-000000000000"),
)
SAMPLE_BYTES = 8 * 4


@pytest.fixture
def three_gpus(tmp_path: Path) -> dict[str, str]:
    """A machine whose first GPU is too small for TensorFlow, which leaves it out."""
    return fake_gpus(tmp_path, *GPUS)


def test_two_gpus_of_three_train_in_another_order_than_nvmls(three_gpus: dict[str, str]) -> None:
    machine = three_gpus | {"CUDA_VISIBLE_DEVICES": f"{GPUS[2].uuid},{GPUS[1].uuid}"}
    listed = gpubalance("devices", code=0, environment=machine).stdout
    assert all(gpu.name in listed for gpu in GPUS)
    assert "hidden by CUDA_VISIBLE_DEVICES" in listed
    train = ("run", "--gpus", "2,1", "--batches", "16,8", "--model", TINY, *SHORT, "--json")
    result = json.loads(gpubalance(*train, code=0, environment=machine).stdout)
    assert [device["index"] for device in result["devices"]] == [2, 1]
    assert [device["simulated"] for device in result["devices"]] == [False, False]
    done = operations(machine)
    assert {one.device for one in done} == {1, 2}
    for device, batch in ((2, 16), (1, 8)):
        of_it = [one for one in done if one.device == device]
        assert {"allocate", "kernel", "all_reduce"} <= {one.kind for one in of_it}
        assert batch * SAMPLE_BYTES in {one.bytes for one in of_it if one.kind == "to_device"}


def test_a_gpu_that_tensorflow_leaves_out_is_named(three_gpus: dict[str, str]) -> None:
    done = gpubalance("run", "--gpus", "1,0", "--batches", "16,8", "--model", TINY, environment=three_gpus, code=3)
    assert "leaves out GPU:0 (NVIDIA GeForce GTX 750" in done.stderr
    assert not any(one.kind == "kernel" for one in operations(three_gpus))
