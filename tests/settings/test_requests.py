"""What a request refuses, and which devices a run uses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gpubalance.settings.device import Device
from gpubalance.settings.requests import RunRequest, Settings
from gpubalance.settings.shares import Shares

DEVICES = tuple(Device(index=i, uuid=f"CPU-{i}", name="CPU", memory_bytes=None, simulated=True) for i in range(2))


def request(split: Shares) -> RunRequest:
    return RunRequest(devices=DEVICES, split=split, settings=Settings(model="small"))


def test_a_run_uses_the_devices_that_have_samples() -> None:
    used = request(Shares((0, 1640), (0, 820))).of_used
    assert used.devices == DEVICES[1:]
    assert used.split == Shares((1640,), (820,))
    assert used.of_used == used


def test_a_run_has_a_batch_for_each_device() -> None:
    with pytest.raises(ValidationError, match="one batch a device"):
        request(Shares((820, 568, 8)))
