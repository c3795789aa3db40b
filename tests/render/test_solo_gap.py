"""The causes of the distance from the solo sum, as they are told."""

from __future__ import annotations

from gpubalance.devices.profile import simulated_devices
from gpubalance.render.plan import all_losses, losses
from gpubalance.results.gap import Ran, SoloGap, divide_gap


def test_a_device_that_is_faster_in_the_run_than_alone_is_told_as_a_gain() -> None:
    gap = divide_gap([Ran(1000.0, 100, 0.1, 0.125), Ran(500.0, 50, 0.1, 0.08)], 0.125)
    told = {loss.cause: loss.text for loss in losses(simulated_devices("2")[0], gap)}
    assert told["CPU:0 slower than alone"] == "−200"
    assert told["CPU:1 faster than alone"] == "+125"


def test_devices_that_are_as_fast_as_alone_lose_nothing_by_rounding() -> None:
    took_s = 0.1 + 0.2  # which is not 0.3
    gap = divide_gap([Ran(1000.0, 300, 0.3, took_s), Ran(1000.0, 300, 0.3, took_s)], took_s)
    assert {loss.rate for loss in all_losses(simulated_devices("2")[0], gap)} == {0.0}


def test_what_is_too_small_to_matter_is_told_only_if_it_adds_up() -> None:
    devices, parts = simulated_devices("4")[0], {"left_out": 0.0, "batch_sizes": 50.0, "imbalance": -1e-10, "sync": 0.9}
    gap = SoloGap(solo_sum=1000.0, slow=0.0, slowdown=(8e-10, 0.0, 0.0, 0.0), throughput=949.1, **parts)
    assert [(loss.cause, loss.rate) for loss in losses(devices, gap)] == [("other batches than the best alone", 50.0)]
    slow = gap.model_copy(update={"slowdown": (0.6, 0.7, 0.0, 0.0), "throughput": 947.8})
    (batches, rest) = losses(devices, slow)
    assert (rest.cause, round(rest.rate, 6)) == ("the rest", 2.2)
    (largest, rest) = losses(devices, gap.model_copy(update={"sync": 30.0, "throughput": 920.0}), most=1)
    assert (largest, rest.cause, round(rest.rate, 6)) == (batches, "the rest", 30.0)
