from typing import Any

import pytest

from gpubalance.devices.selection import select
from gpubalance.errors import UsageError
from gpubalance.settings.device import Device
from tests.support.cases import cases


def gpu(index: int, uuid: str, bus_id: str | None = None, name: str = "GTX") -> Device:
    card: Any = {"name": name, "memory_bytes": None, "simulated": False}
    return Device(index=index, uuid=uuid, bus_id=bus_id, **card)


TI = gpu(0, "GPU-1080aaaa-01", "0000:01:00.0", "GTX 1080 Ti")
PLAIN = gpu(1, "GPU-1080bbbb-02", "0000:0a:00.0")
BOTH = (TI, PLAIN)


def test_none_means_all_in_their_order_and_a_choice_has_the_users() -> None:
    assert select(None, BOTH) == BOTH
    assert select(None, ()) == ()
    assert select(["1", "GPU-1080a"], BOTH) == (PLAIN, TI)


@cases(
    "token",
    *("1", " 1 ", "1080b", "1080bbbb-02"),
    *("GPU-1080bbbb-02", "gpu-1080BBBB-02", "GPU-1080b"),
    *("0000:0a:00.0", "0000:0A:00.0", "00000000:0A:00.0", "0a:00.0"),
)
def test_the_spellings_of_one_device(token: str) -> None:
    assert select([token], BOTH) == (PLAIN,)


@cases(
    "token",
    *("2", "-1", "00", "", "all", "GPU-", "GPU-10", "10", "MIG-1080a", "0000:0b:00.0"),
)
def test_an_unknown_device_is_answered_with_the_candidates(token: str) -> None:
    with pytest.raises(UsageError, match="there is no device") as caught:
        select([token], BOTH)
    assert "0  GTX 1080 Ti  GPU-1080aaaa-01" in caught.value.remedy
    assert "1  GTX  GPU-1080bbbb-02" in caught.value.remedy


SLICES = (gpu(0, "MIG-aaaa"), gpu(0, "MIG-bbbb"))


@cases(
    "tokens, devices, says",
    (["GPU-1080"], (*BOTH, gpu(2, "GPU-ffff")), "'GPU-1080' matches 2 devices"),
    (["0"], SLICES, "'0' matches 2 devices"),
    (["0", "0"], BOTH, "GPU:0 is named twice"),
    (["0", "1", "GPU-1080a"], BOTH, "GPU:0 is named twice"),
    (["0000:01:00.0", "0"], BOTH, "GPU:0 is named twice"),
    ([], BOTH, "no device is named"),
    (["0"], (), "there is no device '0'"),
    (["\x1b[31m7\n"], BOTH, "there is no device '7'"),
)
def test_no_choice_is_answered_with_those_that_match(
    tokens: list[str], devices: tuple[Device, ...], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        select(tokens, devices)
    assert caught.value.message == says
    assert "GPU-ffff" not in caught.value.remedy
    assert devices or caught.value.remedy == "there are no devices here"


def test_an_index_goes_before_a_uuid_and_a_whole_uuid_before_a_beginning() -> None:
    devices = (gpu(123, "GPU-9"), gpu(0, "GPU-1234"), gpu(1, "GPU-12345"))
    assert select(["123", "1234"], (devices[0], devices[1])) == (devices[0], devices[1])
    assert select(["GPU-1234"], devices) == (devices[1],)
    assert select(["MIG-bbb", "aaa"], SLICES) == (SLICES[1], SLICES[0])
