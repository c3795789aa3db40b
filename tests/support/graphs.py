"""What goes from one device to another in the functions that TensorFlow runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Crossing:
    """A tensor that a function sends from one device to another, and what takes it there.

    `takers` are the operations that take it on the other device.
    """

    sender: str
    receiver: str
    tensor: str
    takers: frozenset[str]


@contextmanager
def crossings(*devices: str) -> Iterator[list[Crossing]]:
    """Fills the list at the end with those of functions that run on all of these devices.

    These functions run in the block for the first time.

    Control edges between devices are left out: they carry nothing, and nothing waits for a device's
    kernels for them.
    """
    from tensorflow.python.eager import context

    found: list[Crossing] = []
    # Forget the functions of earlier tests, which something there may have collected.
    context.context().disable_graph_collection()
    context.context().enable_graph_collection()
    try:
        yield found
        for function in context.context().export_run_metadata().function_graphs:
            graphs = function.partition_graphs
            if {_device_of(graph) for graph in graphs} >= set(devices):
                found += [crossing for graph in graphs for crossing in _received(graph)]
    finally:
        context.context().disable_graph_collection()


def _device_of(graph: Any) -> str:
    return str(graph.node[0].device.partition("device:")[2]) if graph.node else ""


def _received(graph: Any) -> Iterator[Crossing]:
    for node in graph.node:
        if node.op not in ("_Recv", "_HostRecv"):
            continue
        told = [node.attr[name].s.decode() for name in ("send_device", "recv_device")]
        sender, receiver = (device.partition("device:")[2] for device in told)
        takers = [other for other in graph.node if _takes(other, node)]
        kinds = frozenset(taker.op for taker in takers)
        is_taken = any(_is_taken(taker, graph) for taker in takers)
        is_control = kinds <= {"Identity"} and not is_taken
        if sender != receiver and not is_control:
            tensor = node.attr["tensor_name"].s.decode()
            yield Crossing(sender, receiver, tensor, kinds)


def _takes(node: Any, other: Any) -> bool:
    """Whether a node takes an output of the other, and does not only wait for it."""
    return any(name.partition(":")[0] == other.name for name in node.input)


def _is_taken(node: Any, graph: Any) -> bool:
    return any(_takes(other, node) for other in graph.node)
