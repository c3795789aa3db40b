"""Memory that is kept free: on all devices, or on some by the name that --gpus has for them."""

from __future__ import annotations

from typing import Any

import pytest

from gpubalance.errors import UsageError
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import margin_on, margin_text, refuse_unknown
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest, LayersRequest, ProbeRequest
from gpubalance.settings.settings import Settings
from tests.jobs.probes import QUICK, devices_of
from tests.support.altered import altered
from tests.support.cases import cases

MIB = 1 << 20


HERE = devices_of(QUICK, QUICK)
SPREAD = tuple(
    altered(HERE[0], host=host, uuid=f"SIM-{host}") for host in ("alpha", "beta")
)


@cases(
    "typed, devices, kept_mib, text",
    ("512MiB", HERE, [512, 512], "512 MiB"),
    ("0=2GiB,1=512MiB", HERE, [2048, 512], "2.00 GiB on 0, 512 MiB on 1"),
    (" 1 = 3 MiB ", HERE, [0, 3], "3.00 MiB on 1"),
    ("beta:0=1GiB", SPREAD, [0, 1024], "1.00 GiB on beta:0"),
    ({1: "2MiB", "0": 0}, HERE, [0, 2], "2.00 MiB on 1, 0 B on 0"),
)
def test_each_device_keeps_its_own(
    typed: object, devices: tuple[Device, ...], kept_mib: list[int], text: str
) -> None:
    margin = PlanRequest(margin_bytes=typed).margin_bytes
    refuse_unknown(margin, devices)
    assert [margin_on(each, margin) / MIB for each in devices] == kept_mib
    assert margin_text(margin) == text


@cases(
    "typed, says",
    ("0=", "'' is not a size"),
    ("=1GiB", "'=1GiB' is not DEVICE=SIZE, such as 0=2GiB"),
    ("0=1GiB,", "'' is not DEVICE=SIZE"),
    ("0=1GiB,0=2GiB", "device 0 is given twice"),
    ("1=512", "512 means 512 bytes: give a unit, 512MiB, or 512B"),
    ("0:2GiB", "'0:2GiB' is not a size; .*; on some devices only: 0=2GiB,1=512MiB"),
)
def test_what_is_no_margin_is_refused(typed: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PlanRequest(margin_bytes=typed)


def test_a_margin_of_a_device_that_is_not_used_is_refused() -> None:
    """Before anything is measured, and by each command that has the option."""
    margin = {"0": MIB, "7": MIB}
    common: Any = {"devices": HERE, "settings": Settings()}
    for make in (
        lambda: ProbeRequest(**common, margin_bytes=margin),
        lambda: BalanceRequest(**common, plan=PlanRequest(margin_bytes=margin)),
        lambda: LayersRequest(**common, margin_bytes=margin),
    ):
        with pytest.raises(UsageError, match="names device 7, which") as caught:
            make()
        assert caught.value.remedy == "they are 0, 1"
