"""The processes of one run over several hosts."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from gpubalance.settings.record import Record


def _with_a_port(address: str) -> str:
    """Raises ValueError where nobody can listen."""
    if not 1 <= int(address.rpartition(":")[2]) <= 65535:
        raise ValueError("a port is 1 to 65535")
    return address


Address = Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$", max_length=260), AfterValidator(_with_a_port)]


class Cluster(Record):
    """One process a device, in the devices' order: where each listens, `host:port`, and which of them this is.

    What is said of all devices is said in that order; a process has the one at its `rank`.
    """

    addresses: tuple[Address, ...]
    rank: Annotated[int, Field(ge=0)]
