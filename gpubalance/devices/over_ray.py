"""Ray as a command prefix: `over_ray.py ADDRESS on HOST GPUS PROGRAM…` runs Python on that node.

It is a process of its own, so that nothing else imports Ray. An actor on the node starts the
program, and this process passes on its input, output and exit code. It joins a running cluster and
never starts one. However it ends, Ray then ends its actor, which closes the program's input.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil

_ANSWERS_WITHIN_S = 10.0
_STARTS_WITHIN_S = 30.0
_LOST = 255  # as ssh reports a connection that failed
_CHUNK = 1 << 16


class Relay:
    """The actor: runs a program on this node and passes its pipes on."""

    def __init__(self, words: list[str]) -> None:
        # Ray's own process has the user's environment; Ray changes an actor's CUDA_VISIBLE_DEVICES
        # and OMP_NUM_THREADS.
        environment = psutil.Process(os.getppid()).environ()
        pipe = subprocess.PIPE
        self._program = subprocess.Popen(  # noqa: S603  (no shell; the words are ours)
            [sys.executable, *words],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=environment,
            bufsize=0,
        )

    def write(self, chunk: bytes) -> None:
        """Writes to the program's stdin; an empty chunk closes it."""
        assert self._program.stdin is not None  # noqa: S101  (a pipe)
        try:
            if not chunk:
                self._program.stdin.close()
            while chunk:
                chunk = chunk[self._program.stdin.write(chunk) :]
        except OSError:  # it has ended, which the reader notices
            return

    def read(self, stream: int) -> bytes:
        """The next chunk of the program's stdout (1) or stderr (2), empty at the end."""
        pipe = self._program.stderr
        if stream == 1:
            pipe = self._program.stdout
        assert pipe is not None  # noqa: S101  (a pipe)
        return pipe.read(_CHUNK)

    def end(self) -> int:
        """Waits for the program and returns its exit code."""
        return self._program.wait()


def main() -> None:
    """`ADDRESS nodes` prints those with GPUs, else all; `ADDRESS on …` runs a program there."""
    out = os.dup(1)
    os.dup2(2, 1)  # keeps what Ray prints out of the answer
    address, what, *words = sys.argv[1:]
    try:
        ray = _joined(address)
        if what == "nodes":
            nodes = _nodes(ray)
            with_gpus = [
                name for name, node in nodes.items() if node["Resources"].get("GPU")
            ]
            os.write(out, json.dumps(sorted(with_gpus or nodes)).encode())
            return
        host, gpus, *program = words
        code = _run(ray, _relay_on(ray, host, int(gpus), program), out)
    except Exception as error:  # noqa: BLE001  (Ray raises dozens; with any of them the connection is lost)
        _give_up(f"failed: {type(error).__name__}: {error}".splitlines()[0])
    sys.stderr.flush()
    os._exit(code)


def _joined(address: str) -> Any:
    token = Path(
        os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    ).expanduser()
    if "RAY_AUTH_TOKEN" in os.environ or token.is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # before Ray is imported
    cluster = address
    if address == "auto":
        cluster = os.environ.get("RAY_ADDRESS", "")
    host, _, port = cluster.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():  # Ray itself would try for minutes
        try:
            socket.create_connection((host, int(port)), _ANSWERS_WITHIN_S).close()
        except OSError as error:
            _give_up(f"finds no cluster at {cluster}: {error.strerror or error}")
    import ray

    # The node's Python may lack gpubalance, and its own message should say so
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's own handler takes seconds
    return ray


def _nodes(ray: Any) -> dict[str, Any]:
    """The living nodes by the name each was started with, else by host.

    Where several have one name it is their address.
    """
    by_name: dict[str, list[Any]] = {}
    for node in ray.nodes():
        if node["Alive"]:
            name = node["NodeName"]
            if name == node["NodeManagerAddress"]:  # it was given none
                name = node["NodeManagerHostname"]
            by_name.setdefault(name, []).append(node)
    living = {}
    for name, nodes in by_name.items():
        if len(nodes) == 1:
            living[name] = nodes[0]
            continue
        for node in nodes:
            living[node["NodeManagerAddress"]] = node
    return living


def _relay_on(ray: Any, host: str, gpus: int, program: list[str]) -> Any:
    """The actor on that node, which reserves as many GPUs there as its program uses."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = _nodes(ray).get(host)
    if node is None:
        _give_up(f"says: the cluster has no node {host}")
    has = int(node["Resources"].get("GPU", 0))
    if has < gpus:
        _give_up(f"says: {gpus} GPUs were requested on {host}, which has {has}")
    strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    actor = ray.remote(
        num_cpus=0, num_gpus=gpus, max_concurrency=4, scheduling_strategy=strategy
    )(Relay)
    relay = actor.remote(program)
    try:
        ray.get(relay.__ray_ready__.remote(), timeout=_STARTS_WITHIN_S)
    except ray.exceptions.GetTimeoutError:
        why = f"started nothing within {_STARTS_WITHIN_S:g} s"
        if gpus:
            why += f": {gpus} GPUs are not free"
        _give_up(why)
    return relay


def _run(ray: Any, relay: Any, out: int) -> int:
    """Copies both ways until the program ends.

    Returns its exit code; above 128 a signal ended it.
    """

    def copy_in() -> None:
        chunk = b"."
        with suppress(ray.exceptions.RayError):  # the reader notices it
            while chunk:
                chunk = os.read(0, _CHUNK)
                ray.get(relay.write.remote(chunk))

    def copy_out(stream: int, to: int) -> None:
        while chunk := ray.get(relay.read.remote(stream)):
            while chunk:
                chunk = chunk[os.write(to, chunk) :]

    def copy_errors() -> None:
        with suppress(ray.exceptions.RayError):
            copy_out(2, 2)

    threading.Thread(target=copy_in, daemon=True).start()
    errors = threading.Thread(target=copy_errors, daemon=True)
    errors.start()
    copy_out(1, out)
    os.close(out)
    errors.join()
    code: int = ray.get(relay.end.remote())
    if code < 0:
        return 128 - code
    return code


def _give_up(why: str) -> NoReturn:
    os.write(2, f"Ray {why}\n".encode())
    os._exit(_LOST)
