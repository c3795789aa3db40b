"""The processes of one run over several hosts."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from gpubalance.settings.record import Record


def _with_a_port(address: str) -> str:
    """Returns the address. Raises ValueError if its port is not 1 to 65535."""
    if not 1 <= int(address.rpartition(":")[2]) <= 65535:
        raise ValueError("a port is 1 to 65535")
    return address


Address = Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$", max_length=260), AfterValidator(_with_a_port)]


class Cluster(Record):
    """The `host:port` at which each process listens, one process a device in the devices' order, and which one this is.

    Whatever lists all devices has this order; a process has the device at its `rank`.
    """

    addresses: tuple[Address, ...]
    rank: Annotated[int, Field(ge=0)]
