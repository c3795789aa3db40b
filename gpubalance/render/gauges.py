"""What a GPU's gauges show, as text."""

from __future__ import annotations

from gpubalance.results.telemetry import Moment, Telemetry
from gpubalance.settings.device import Device


def state_text(gauges: Moment | Telemetry | None) -> str:
    """`83 °C 220 W`, as far as NVML gives them."""
    texts = []
    if gauges is not None and gauges.temperature_c is not None:
        texts.append(f"{gauges.temperature_c} °C")
    if gauges is not None and gauges.power_w is not None:
        texts.append(f"{gauges.power_w:.0f} W")
    return " ".join(texts)


def throttled_text(device: Device, gauges: Moment | None) -> str:
    """`GPU:0 is throttled: power cap`; empty if it is not."""
    if gauges is None or not gauges.throttle_reasons:
        return ""
    return f"{device.label} is throttled: {', '.join(gauges.throttle_reasons)}"
