"""One GPU as several: TensorFlow's logical GPUs, each with its own memory limit.

In a process with GPUBALANCE_BENCH_PARTS (`UUID+=BYTES,BYTES`), and in all that it starts, NVML's
one GPU looks like as many GPUs with that much memory, and the engine sets TensorFlow up with as
many logical GPUs. Nothing else in the program knows. Their UUIDs are `UUID+0` and `UUID+1`; what is
between `+` and `=` marks them apart from those of another process on the same GPU.
tests/stand_in/site/sitecustomize.py calls `install` at Python's start.

They share the card's cores, and a process beside them slows all of them. They show that the whole
program works on GPUs with unlike limits, real out-of-memory errors and a real all-reduce, not what
two cards would gain.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

VARIABLE = "GPUBALANCE_BENCH_PARTS"
_MARK = "+"


def environment(uuid: str, sizes: Sequence[int], root: str, mark: str = "") -> Any:
    """Variables for a process that sees the GPU as parts of these sizes in bytes.

    `mark` is in the parts' UUIDs.
    """
    path = [root, f"{root}/tests/stand_in/site", os.environ.get("PYTHONPATH", "")]
    parts = f"{uuid}{_MARK}{mark}={','.join(map(str, sizes))}"
    return {VARIABLE: parts, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def card_of(uuid: str) -> str:
    """The UUID of a part's card; a card's own UUID stays."""
    return uuid.partition(_MARK)[0]


def install() -> None:
    """Makes the modules that read GPUs see parts when they are loaded."""
    marked, _, sizes = os.environ[VARIABLE].partition("=")
    uuid = card_of(marked)
    limits = [int(size) for size in sizes.split(",")]
    patches = {
        "gpubalance.devices.nvml": lambda module: _nvml(module, marked, limits),
        "gpubalance.engine.runtime": lambda module: divide(module, uuid),
    }
    load = SourceFileLoader.exec_module

    def load_and_change(loader: Any, module: ModuleType) -> None:
        # A plugin of TensorFlow's, such as tests/fake_gpu, looks for its devices when it is loaded.
        with _shown(uuid) if module.__name__ == "tensorflow" else nullcontext():
            load(loader, module)
        if module.__name__ in patches:
            patches[module.__name__](module)

    SourceFileLoader.exec_module = load_and_change  # type: ignore[assignment, method-assign]


def logical(kind: str, limits: Sequence[int | None]) -> tuple[str, ...]:
    """Divides this process's first GPU or CPU into parts, and returns TensorFlow's names for them.

    A limit is in bytes; a CPU device takes none.
    """
    import tensorflow as tf

    of_limit = tf.config.LogicalDeviceConfiguration
    parts = [of_limit(None if limit is None else limit >> 20) for limit in limits]
    first = tf.config.list_physical_devices(kind)[0]
    tf.config.set_logical_device_configuration(first, parts)
    return tuple(f"{kind}:{number}" for number in range(len(limits)))


@contextmanager
def _shown(uuid: str) -> Iterator[None]:
    """Shows CUDA, which knows no parts, the whole GPU.

    It restores the variable afterwards, as gpubalance may read it again.
    """
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def _nvml(module: Any, marked: str, limits: Sequence[int]) -> None:
    uuid = card_of(marked)
    read = module.read
    with_gpu = module.with_gpu

    def read_parts(*, gpus: bool = True) -> Any:
        reading = read(gpus=gpus)
        card = next((gpu for gpu in reading.gpus if gpu.uuid == uuid), None)
        if card is None:
            return reading
        parts = []
        for n, limit in enumerate(limits):
            own: dict[str, Any] = {
                "uuid": f"{marked}{n}",
                "name": f"{card.name}, part {n}",
            }
            own |= {"index": n, "memory_bytes": limit, "bus_id": None}
            parts.append(card.model_copy(update=own))
        return reading.model_copy(update={"gpus": tuple(parts)})

    module.read = read_parts
    module.with_gpu = lambda part, *given: with_gpu(card_of(part), *given)


def divide(module: Any, uuid: str) -> None:
    """Changes gpubalance.engine.runtime to set the parts of a GPU up as devices."""
    from gpubalance.engine import memory

    limits: dict[str, int] = {}

    def set_up_parts(devices: Sequence[Any], **_: bool) -> tuple[str, ...]:
        sizes = [device.memory_bytes for device in devices]
        with _shown(uuid):
            names = logical("GPU", sizes)
        limits.update(zip(names, sizes, strict=True))
        return names

    module.set_up_gpus = set_up_parts
    memory.memory_limit_bytes = limits.get  # type: ignore[assignment]
