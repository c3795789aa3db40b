"""The open connections to hosts: one for each host, for all that a command does there."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from gpubalance.devices.hosts import are_reached, command_on
from gpubalance.errors import BadInput
from gpubalance.settings.device import Device, Host, hosts_of
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.workers.connection import AGENT, Connection
from gpubalance.workers.signals import signals_held
from gpubalance.workers.wire import BEATS_EVERY_S

_END_WITHIN_S = 10.0
_open: dict[tuple[str, ...], Connection] = {}
_opening = threading.Lock()


def connection_to(host: Host | None, gpus: int = 0) -> Connection:
    """The open connection to the host, or a new one; if no other hosts are reached, to an agent on this one.

    Ray reserves `gpus` GPUs of that host for it.
    """
    _start_watching()
    with _opening:
        prefix = tuple(command_on(host, AGENT) or ())
        if prefix not in _open or _open[prefix].failure is not None:
            _open[prefix] = Connection(host if prefix else None, gpus)
        return _open[prefix]


@functools.cache
def _start_watching() -> None:
    """Starts the one thread that watches all connections while this program lives."""
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    while True:
        time.sleep(BEATS_EVERY_S)
        for one in list(_open.values()):
            one.watch()


@contextlib.contextmanager
def connected(devices: Sequence[Device]) -> Iterator[None]:
    """Connects to the other hosts of these devices, each with its number of GPUs, until the block ends."""
    try:
        gpus = Counter(device.host for device in devices if not device.simulated)
        for host in hosts_of(devices) if are_reached() else ():
            with signals_held():
                connection_to(host, gpus[host])
        yield
    finally:
        end_connections()


@atexit.register
def end_connections() -> None:
    """Ends all connections at the same time."""
    ending, until_s = list(_open.values()), time.monotonic() + _END_WITHIN_S
    _open.clear()
    for one in ending:
        one.let_go()
    for one in ending:
        one.end(until_s)


def free_addresses(
    hosts: Sequence[Host | None], script: str | None = None, limit: TimeLimit = NO_LIMIT
) -> tuple[str, ...]:
    """Addresses at which a process on each of these hosts may listen, no two the same.

    Raises what `There.said` does, and BadInput if a host does not have that script.
    """
    counts, connections = Counter(hosts), {host: connection_to(host) for host in dict.fromkeys(hosts)}
    while True:
        asked = {host: connection.ask_addresses(counts[host], script) for host, connection in connections.items()}
        free = {}
        for host, answer in asked.items():
            connections[host].meet(limit)
            told = answer.result()
            if not told.addresses:
                raise BadInput(
                    f"{host or 'this host'} has no script {script} in {told.folder}",
                    remedy="the script, and what it reads, must be in the same folder on each host",
                )
            free[host] = iter(told.addresses)
        found = tuple(next(free[host]) for host in hosts)
        if len(set(found)) == len(found):  # else two hosts are one machine
            return found
