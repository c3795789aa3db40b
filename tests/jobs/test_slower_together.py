"""Devices that slow each other down: what `balance` warns of, by the factor on their compute."""

from __future__ import annotations

from gpubalance.settings.device import Device
from tests.support.cases import cases
from tests.support.machines import Machine


@cases(
    "factor, second_factor, told",
    (1.0, 1.0, ""),
    (1.05, 1.05, ""),
    (1.5, 1.0, ""),  # a device by itself is slow for another reason
    (1.5, 1.6, "down: each computes at least 1.5 × as long as alone"),
)
def test_balance_warns_where_all_devices_compute_longer_together(
    factor: float, second_factor: float, told: str
) -> None:
    def offset(device: Device, size: int) -> float:
        return second_factor if device.index == 1 else factor

    plan = Machine(seed=3, off=0.0).balanced(offset=offset)
    assert len(plan.split.used) > 1
    found = [one for one in plan.warnings if one.code == "slower-together"]
    assert [told in one.message for one in found] == [True] * bool(told)
    assert all("gpubalance independent" in one.next for one in found)
