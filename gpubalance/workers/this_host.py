"""What a keeper tells of its host: what is installed there, and where other hosts reach it.

It loads no slow module, as the keeper uses it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from gpubalance._version import __version__
from gpubalance.system.versions import software


def installed() -> dict[str, str | None]:
    """Versions that must be the same on all hosts of a run."""
    here = software()
    return {
        "gpubalance": __version__,
        "python": ".".join(map(str, sys.version_info[:2])),
        "tensorflow": here.tensorflow,
        "keras": here.keras,
    }


def address_of(host: str) -> str:
    """Where other hosts reach this one, which they call `host` or `user@host`.

    It is the address of that name, else the one that ssh used, else that of the first card. A card
    that is down comes last, but it stays: it may be just coming up, and have no carrier yet.
    """
    own = _own_addresses()
    wanted = []
    with contextlib.suppress(OSError):
        wanted.append(socket.gethostbyname(host.rpartition("@")[2]))
    wanted += os.environ.get("SSH_CONNECTION", "").split()[2:3]
    for address in wanted + own:
        if address in own:
            return address
    return "127.0.0.1"


def _own_addresses() -> list[str]:
    import psutil  # here, as a keeper that has no other host needs none

    states = psutil.net_if_stats()
    cards = psutil.net_if_addrs()
    up = [name for name in cards if name in states and states[name].isup]
    down = [name for name in cards if name not in up]
    addresses = []
    for name in up + down:
        for card in cards[name]:
            if card.family == socket.AF_INET and not card.address.startswith("127."):
                addresses.append(card.address)
    return addresses
