"""What the fake GPUs of a machine have done, as the plugin's trace says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Operation:
    """A thing that a GPU did, or will have done at `ends_s`.

    `kind` is one of these:

    - "kernel", "all_reduce": `name` is TensorFlow's operation, `node` its name in the graph;
      `bytes` are a kernel's inputs and outputs, a sum's values
    - "to_device", "to_host", "between": a copy; the last is from one GPU to another, or within one
    - "allocate": TensorFlow's allocator gets memory; "refuse": there is not as much left

    `stream` is "compute", "to_device", "to_host" or "between"; for sums "collective", or "ring" for
    those that TensorFlow makes itself, between processes or where it is asked to. The host queued
    it at `queued_at_s`; it then took `host_s` to compute a kernel's values, which a real GPU's host
    would not take. Times are those of `time.monotonic()` and `time.perf_counter()`, in all
    processes of this machine.
    """

    process: int
    device: int
    kind: str
    name: str
    node: str
    stream: str
    queued_at_s: float
    starts_s: float
    ends_s: float
    bytes: int
    flops: int
    host_s: float


def operations(variables: Mapping[str, str]) -> list[Operation]:
    """All that the GPUs of a machine with these variables have done until now.

    It is in the order of its start. `device` is the GPU's number in NVML, whatever a process calls
    it.
    """
    found = []
    for file in Path(variables["FAKEGPU_TRACE"]).glob("*.jsonl"):
        for line in file.read_text().splitlines():
            found.append(Operation(process=int(file.stem), **json.loads(line)))
    return sorted(found, key=lambda operation: operation.starts_s)
