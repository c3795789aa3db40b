"""The causes of the distance from the solo sum, as they are told."""

from __future__ import annotations

from gpubalance.devices.profile import simulated_devices
from gpubalance.render.solo_gap import losses
from gpubalance.results.gap import Ran, divide_gap


def test_a_device_that_is_faster_in_the_run_than_alone_is_told_as_a_gain() -> None:
    gap = divide_gap([Ran(1000.0, 100, 0.1, 0.125), Ran(500.0, 50, 0.1, 0.08)], 0.125)
    told = {loss.cause: loss.text for loss in losses(simulated_devices("2")[0], gap)}
    assert told["CPU:0 slower than alone"] == "−200"
    assert told["CPU:1 faster than alone"] == "+125"
