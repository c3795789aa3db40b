"""What a request refuses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gpubalance.settings.device import Device
from gpubalance.settings.requests import RunRequest, Settings

DEVICES = tuple(Device(index=i, uuid=f"CPU-{i}", name="CPU", memory_bytes=None, simulated=True) for i in range(2))


def request(batches: tuple[int, ...], micro_batches: tuple[int, ...] | None) -> RunRequest:
    return RunRequest(devices=DEVICES, batches=batches, micro_batches=micro_batches, settings=Settings(model="small"))


def test_what_is_in_memory_at_a_time_is_the_micro_batch_or_the_batch() -> None:
    assert request((1640, 568), (820, 568)).at_a_time == (820, 568)
    assert request((1640, 568), None).at_a_time == (1640, 568)
    assert request((1640, 0), (820, 0)).at_a_time == (820, 0)


@pytest.mark.parametrize("micro_batches", [(820,), (820, 0), (820, 600), (700, 568), (0, 568), (820, 568, 1), ()])
def test_micro_batches_that_do_not_divide_are_refused(micro_batches: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="micro-batch"):
        request((1640, 568), micro_batches)
