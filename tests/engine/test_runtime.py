"""TensorFlow's GPUs are matched by bus id. No GPU here: the texts are those that TensorFlow 2.21 prints for one."""

from __future__ import annotations

from typing import Any

import pytest

from gpubalance.settings.device import Device


def gpu(index: int, bus_id: str | None) -> Device:
    return Device(
        index=index, uuid=f"GPU-{index}", name=f"card {index}", memory_bytes=1, simulated=False, bus_id=bus_id
    )


DESCRIPTION = "device: {}, name: NVIDIA GeForce GTX 1080, pci bus id: {}, compute capability: 6.1"


def test_bus_ids_are_read_from_tensorflows_descriptions(tensorflow: Any) -> None:
    from gpubalance.engine.runtime import bus_ids

    texts = [DESCRIPTION.format(0, "0000:0A:00.0"), DESCRIPTION.format(1, "0000:01:00.0"), "device: 2"]
    assert bus_ids(texts) == ["0000:0a:00.0", "0000:01:00.0", None]


def test_a_device_that_tensorflow_leaves_out_is_named(tensorflow: Any) -> None:
    from gpubalance.engine.runtime import missing_devices

    pair = [gpu(0, "0000:01:00.0"), gpu(1, "0000:02:00.0")]
    assert missing_devices(pair, ["0000:02:00.0", "0000:01:00.0"], 2) == []
    assert missing_devices(pair, ["0000:02:00.0"], 1) == [pair[0]]
    # Where no bus id is known, the count still tells that one is missing.
    assert missing_devices(pair, [None], 1) == [pair[1]]


def test_another_order_of_tensorflows_is_followed(tensorflow: Any) -> None:
    from gpubalance.engine.runtime import order_of

    pair = [gpu(0, "0000:01:00.0"), gpu(1, "0000:02:00.0")]
    assert order_of(pair, ["0000:02:00.0", "0000:01:00.0"]) == [1, 0]
    assert order_of(pair, [None, None]) == [0, 1]
    assert order_of(pair, ["0000:02:00.0", None]) == [0, 1]


@pytest.mark.parametrize(
    ("text", "replica"),
    [
        ("MemoryError: OOM on replica 1: batch 710 needs 9 bytes of 8", 1),
        (
            "OOM when allocating tensor with shape[820,64] on /job:localhost/replica:0/task:0/device:GPU:1 by",
            1,
        ),
        ("failed to allocate memory [[{{node replica_2/conv/Conv2D}}]]", 2),
        ("out of memory", None),
    ],
)
def test_which_replica_an_out_of_memory_is_about(tensorflow: Any, text: str, replica: int | None) -> None:
    from gpubalance.engine.failures import failing_replica

    assert failing_replica(text) == replica
