"""`scripts/bench gpu` on one GPU: steps that need two devices have parts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.settings.device import Device
from scripts.benches.gpu_steps.runner import Campaign, run_steps
from tests.fake_gpu import Gpu, fake_gpus, operations
from tests.support.gpu.steps import STEPS

UUID = "GPU-fa4e0000-0000-4000-8000-000000000000"
IMAGE_BYTES = 28 * 28 * 4


@pytest.mark.full  # the plugin takes a compiler
def test_parts_of_one_gpu_train_as_one_device_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = fake_gpus(tmp_path, Gpu(uuid=UUID))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # the tests' own
    card = Device(
        index=0, uuid=UUID, name="fake", memory_bytes=Gpu.memory_bytes, simulated=False
    )
    steps = [step for step in STEPS if step.name == "exact"]
    campaign = Campaign(tmp_path, tmp_path / "figures.jsonl", [card], rehearsed=True)
    (outcome,) = run_steps(steps, campaign, 5.0, print)
    assert outcome.why == ""
    (figure,) = outcome.figures
    assert figure["value"]["split"] < 1e-6
    copied = {one.bytes for one in operations(variables) if one.kind == "to_device"}
    assert {70 * IMAGE_BYTES, 30 * IMAGE_BYTES} <= copied
