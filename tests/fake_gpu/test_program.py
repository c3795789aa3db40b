"""The program sees the fake GPUs as it would GPUs."""

from __future__ import annotations

import json

from tests.cli.program import SHORT, TINY, gpubalance
from tests.fake_gpu import operations


def test_the_program_trains_on_two_gpus(two_gpus: dict[str, str]) -> None:
    listed = gpubalance("devices", code=0, environment=two_gpus).stdout
    assert "RTX 3060" in listed
    assert "RTX 3050" in listed
    train = ("run", "--gpus", "0,1", "--batches", "16,8", "--model", TINY, *SHORT, "--json")
    result = json.loads(gpubalance(*train, code=0, environment=two_gpus).stdout)
    assert [device["simulated"] for device in result["devices"]] == [False, False]
    assert result["batches"] == [16, 8]
    done = operations(two_gpus)
    for device in (0, 1):
        kinds = {operation.kind for operation in done if operation.device == device}
        assert {"allocate", "kernel", "to_device", "all_reduce"} <= kinds
