"""A machine of fake GPUs, as the environment variables of a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests import stand_in
from tests.fake_gpu.build import NoFakeGpus, site_packages
from tests.support.in_process import HANGS_AFTER_S
from tests.support.python import python

# Collecting garbage takes half of the time of this import, though nothing is freed.
_BEGINS = """
import gc
gc.disable()
import keras
gc.freeze()
gc.enable()
"""


@dataclass(frozen=True)
class Fault:
    """What goes wrong on a GPU from the `number`-th operation of that name in a process on.

    With `samples`, only operations count that have an input whose first dimension is as large. The
    kinds, whose texts are those of TensorFlow's build with CUDA:

    - "no_algorithm": cuDNN finds no algorithm for a convolution, for lack of memory
    - "cudnn", "cublas": the library can't be started, for lack of memory
    - "nccl": GPUs can't be connected, at "CollectiveReduceV2" or "NcclAllReduce"
    - "illegal_address": the kernel reads what is not its own, and TensorFlow aborts the process
    - "hang": the kernel never ends
    """

    kind: Literal["no_algorithm", "cudnn", "cublas", "nccl", "illegal_address", "hang"]
    operation: str
    number: int = 1
    samples: int = 0


@dataclass(frozen=True)
class Gpu:
    """A GPU, with the time that its work takes.

    Each kernel takes `launch_us`, `kernel_ms`, and the longer of two times: that of its FLOPs, and
    that of the bytes of its inputs and outputs.

    `uuid` and `bus` are NVML's; None: made from the GPU's number. `more` has lines for the NVML
    stand-in, as ("temperature 60", "throttle 4").
    """

    name: str = "NVIDIA Fake GPU"
    memory_bytes: int = 2 << 30
    gflops: float = 50.0
    gbytes_per_s: float = 20.0
    launch_us: float = 5.0
    kernel_ms: float = 0.0
    pcie_gbytes_per_s: float = 5.0
    uuid: str | None = None
    bus: str | None = None
    capability: tuple[int, int] = (8, 6)
    faults: tuple[Fault, ...] = ()
    more: tuple[str, ...] = ()


def fake_gpus(folder: Path, *gpus: Gpu, **more: Any) -> dict[str, str]:
    """The variables of `machine`; skips the test where the plugin can't be compiled."""
    try:
        return machine(folder, *gpus, **more)
    except NoFakeGpus as why:
        pytest.skip(str(why))


def machine(
    folder: Path,
    *gpus: Gpu,
    driver: str = "575.57.08",
    cuda: int = 12090,
    more: tuple[str, ...] = (),
) -> dict[str, str]:
    """Variables that give a child process a machine with these GPUs, in NVML and in TensorFlow.

    Add them to the child's own, without CUDA_VISIBLE_DEVICES unless some are to be hidden. The
    machine's files are written into `folder`; `more` has lines for the NVML stand-in of the machine
    as a whole. Raises NoFakeGpus where the plugin can't be compiled.
    """
    plugin = site_packages()
    trace = folder / "fake-gpu-trace"
    trace.mkdir(parents=True, exist_ok=True)
    lines = [f"driver {driver}", f"cuda {cuda}", f"nvml 12.{driver}", *more]
    for number, gpu in enumerate(gpus):
        lines += [f"gpu {number} {line}" for line in _lines(number, gpu)]
    paths = [str(plugin), os.environ.get("PYTHONPATH", "")]
    return {
        **stand_in.environment(folder, "\n".join(lines) + "\n"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "FAKEGPU_TRACE": str(trace),
    }


def _lines(number: int, gpu: Gpu) -> Iterator[str]:
    """What the script says of a GPU: first NVML's keys, then the plugin's.

    NVML's are described in ../stand_in/nvml.c.
    """
    yield f"uuid {gpu.uuid or f'GPU-fa4e{number:04x}-0000-4000-8000-{number:012x}'}"
    yield f"name {gpu.name}"
    yield f"bus {gpu.bus or f'00000000:{number + 1:02X}:00.0'}"
    yield "capability {} {}".format(*gpu.capability)
    yield f"memory {gpu.memory_bytes} {gpu.memory_bytes}"
    yield f"gflops {gpu.gflops}"
    yield f"gbytes_per_s {gpu.gbytes_per_s}"
    yield f"pcie_gbytes_per_s {gpu.pcie_gbytes_per_s}"
    yield f"launch_us {gpu.launch_us}"
    yield f"kernel_ms {gpu.kernel_ms}"
    for fault in gpu.faults:
        yield f"fault {fault.kind} {fault.operation} {fault.number} {fault.samples}"
    yield from gpu.more


def child(code: str, variables: Mapping[str, str], *arguments: str) -> str:
    """Runs Python code on such a machine, and returns what it prints.

    It runs from the checkout's folder, and must end well.
    """
    done = child_process(code, variables, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def child_process(
    code: str, variables: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """The same, however it ends."""
    own = dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    own.pop("CUDA_VISIBLE_DEVICES", None)  # which the tests set for their own process
    words = ("-c", _BEGINS + code, *arguments)
    return python(*words, only={**own, **variables}, timeout=HANGS_AFTER_S)
