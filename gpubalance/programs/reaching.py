"""Tries whether workers would reach each other: `python reaching.py OWN OTHER…`, each HOST:PORT.

It listens at its own address, as TensorFlow does in a worker, and connects to the others. It prints
its clock, and why it does not reach an address. It loads no slow module.
"""

from __future__ import annotations

import sys

_HERE = __file__.rpartition("/")[0]
sys.path[:] = [folder for folder in sys.path if folder != _HERE]

import json  # noqa: E402
import socket  # noqa: E402
import time  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402

# The others' Python may start that much later
_WITHIN_S = 10.0
_AGAIN_AFTER_S = 0.2


def main() -> None:
    """Ends when all have connected, or after that time."""
    own, *others = sys.argv[1:]
    until_s = time.monotonic() + _WITHIN_S
    with (
        _listening(own, len(others)) as server,
        ThreadPoolExecutor(len(others) + 1) as threads,
    ):
        problems = threads.map(lambda other: _problem(other, until_s), others)
        _be_reached(server, len(others), until_s)
        unreached = dict(zip(others, problems, strict=True))
    reasons = {address: why for address, why in unreached.items() if why}
    sys.stdout.write(
        json.dumps({"address": own, "clock_s": time.time(), "unreached": reasons})
        + "\n"
    )


def _listening(address: str, count: int) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_server((host, int(port)), backlog=count + 1)


def _problem(address: str, until_s: float) -> str:
    """Why that address can't be reached until then; empty if it can."""
    host, _, port = address.rpartition(":")
    why = "timed out"
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            socket.create_connection((host, int(port)), left_s).close()
        except OSError as error:  # nobody listens there yet, or ever
            why = error.strerror or str(error)
            time.sleep(_AGAIN_AFTER_S)
        else:
            return ""
    return why


def _be_reached(server: socket.socket, count: int, until_s: float) -> None:
    """Takes as many connections."""
    for _ in range(count):
        server.settimeout(max(0.01, until_s - time.monotonic()))
        try:
            server.accept()[0].close()
        except TimeoutError:
            return


main()
