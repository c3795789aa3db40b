"""TensorFlow's GPUs are matched by bus id.

There is no GPU here: the texts are those that TensorFlow 2.21 prints for one.
"""

from __future__ import annotations

from typing import Any

from gpubalance.settings.device import Device
from tests.support.cases import cases

DESCRIPTION = (
    "device: {}, name: NVIDIA GeForce GTX 1080, pci bus id: {}, compute capability: 6.1"
)
FIRST = "0000:0A:00.0"
SECOND = "0000:01:00.0"


@cases(
    "bus_ids, numbers",
    ([FIRST, SECOND], [0, 1]),
    ([SECOND, FIRST], [1, 0]),  # TensorFlow has another order
    ([SECOND], [None, 0]),  # it leaves the first out
    ([SECOND, None], [0, 1]),  # where one is unknown, the position tells
    ([None], [0, None]),
)
def test_a_bus_id_tells_it(
    bus_ids: list[str | None], numbers: list[int | None]
) -> None:
    from gpubalance.engine.runtime import numbers_of

    card: Any = {"name": "card", "memory_bytes": 1, "simulated": False}
    pair = []
    for i, bus_id in enumerate((FIRST.lower(), SECOND)):
        pair.append(Device(index=i, uuid=f"GPU-{i}", bus_id=bus_id, **card))
    told = []
    for i, one in enumerate(bus_ids):
        told.append(DESCRIPTION.format(i, one) if one else f"device: {i}")
    assert numbers_of(pair, told) == numbers
