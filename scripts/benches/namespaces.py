"""Hosts on this machine: network namespaces on a bridge of their own.

Each has a link of a given rate.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

# A token bucket as large as a burst of a network card, and a queue as long as that of a switch.
_SHAPED = ("burst", "64kb", "latency", "100ms")


class NoNamespacesError(Exception):
    """This machine, or who is asked to do it, can't make network namespaces; the text says why."""


@contextmanager
def hosts_with_links(*rates: str | None) -> Iterator[list[str]]:
    """The names of one host for each rate, such as `100mbit`; None is as fast as the machine.

    They and their network are gone afterwards, whatever happens. Raises NoNamespacesError.
    """
    with ExitStack() as undo:
        try:
            names = _made(rates, undo)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoNamespacesError(f"no network namespaces here: {error}") from error
        yield names


def address_of(name: str) -> str:
    """The address of such a host."""
    asks = f"ip -n {name} -j -4 address show eth0"
    shown = subprocess.check_output(asks.split())
    ((card,),) = (card["addr_info"] for card in json.loads(shown))
    return str(card["local"])


def _made(rates: Sequence[str | None], undo: ExitStack) -> list[str]:
    """The hosts' names; `undo` removes what was made, also if that fails in the middle."""
    suffix = f"{os.getpid() % 10_000}"
    subnet = f"10.231.{int(suffix) % 250}"
    bridge, names = f"gpb{suffix}", list[str]()
    _ip("link", "add", bridge, "type", "bridge")
    undo.callback(_ip, "link", "del", bridge)
    _ip("link", "set", bridge, "up")
    for number, rate in enumerate(rates, 1):
        name, end = f"gph{number}x{suffix}", f"gpv{number}x{suffix}"
        _ip("netns", "add", name)
        undo.callback(_ip, "netns", "del", name)
        names.append(name)
        _ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name)
        undo.callback(_ip, "link", "del", end)
        _ip("link", "set", end, "master", bridge, "up")
        _ip("-n", name, "addr", "add", f"{subnet}.{number}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        if rate is not None:
            _limit(rate, "dev", end)
            _limit(rate, "dev", "eth0", within=("ip", "netns", "exec", name))
    return names


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _limit(rate: str, *device: str, within: tuple[str, ...] = ()) -> None:
    """Limits what the device sends."""
    adds = ["tc", "qdisc", "add"]
    command = [*within, *adds, *device, "root", "tbf", "rate", rate, *_SHAPED]
    subprocess.run(command, check=True, capture_output=True)
