"""What the machine has, and the program's own view of it.

Also whether its CUDA libraries compute what the CPU does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benches.gpu_steps.place import Figure, Place
from tests.cli.program import QUICK_PAIR
from tests.support.as_worker import show

MPS = "nvidia-cuda-mps-control"
_OF_CUDA = re.compile(r"lib(cu|nv|nccl).*\.so")


def figures(place: Place) -> Iterator[Figure]:
    """The findings. Raises StepFailed if a command ends with an exit code that means a bug."""
    yield _driver(place.folder / "nvidia-smi.xml")
    found = shutil.which(MPS)
    yield Figure("mps", found, f"`{MPS}` is {'there' if found else 'not there'}")
    simulate = () if place.cards else ("--simulate", QUICK_PAIR)
    listing = place.program("devices", *simulate).out
    seen = listing["simulated"] or listing["nvidia"]["gpus"]
    yield Figure(
        "devices", seen, f"`devices`: {', '.join(one['name'] for one in seen)}"
    )
    # Before this process uses a GPU, of which `doctor` would warn
    yield _doctor(place, simulate)
    yield from _computed(place)
    loaded = cuda_libraries(Path("/proc/self/maps").read_text(encoding="utf-8"))
    names = [Path(one).name for one in loaded]
    yield Figure(
        "libraries", loaded, f"loaded: {', '.join(names) or 'no CUDA library'}"
    )


def _doctor(place: Place, simulate: Sequence[str]) -> Figure:
    checks = place.program("doctor", *simulate, codes=(0, 3)).out["checks"]
    counts = Counter(check["status"] for check in checks)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    not_ok = [
        f"; {one['what']} ({one['detail']})" for one in checks if one["status"] != "ok"
    ]
    return Figure("doctor", checks, f"`doctor`: {told}{''.join(not_ok)}")


def _driver(file: Path) -> Figure:
    """Keeps all that the driver says of its cards in that file."""
    if not shutil.which("nvidia-smi"):
        return Figure("nvidia_smi", None, "no `nvidia-smi`")
    done = subprocess.run(
        ["nvidia-smi", "-q", "-x"], capture_output=True, text=True, check=False
    )
    file.write_text(done.stdout, encoding="utf-8")
    told = (
        ""
        if done.returncode == 0
        else f"`nvidia-smi -q -x` ended with {done.returncode}"
    )
    return Figure("nvidia_smi", done.returncode, told)


def _computed(place: Place) -> Iterator[Figure]:
    """Whether the first device computes what the CPU does, and the time until TensorFlow has it."""
    devices = place.devices(1)
    began = time.monotonic()
    show(devices)
    import tensorflow as tf

    from gpubalance.engine.runtime import use_devices

    (name,) = use_devices(devices)
    loaded_s = time.monotonic() - began
    yield Figure(
        "loaded",
        loaded_s,
        f"TensorFlow {tf.__version__} has {name} after {loaded_s:.1f} s",
    )
    tf.config.experimental.enable_tensor_float_32_execution(False)
    random = np.random.default_rng(0)
    matrix = random.random((1024, 1024), np.float32)
    images = random.random((8, 64, 64, 16), np.float32)
    filters = random.random((3, 3, 16, 32), np.float32)
    operations: dict[str, Callable[[], Any]] = {
        "matmul": lambda: tf.linalg.matmul(matrix, matrix),
        "convolution": lambda: tf.nn.conv2d(images, filters, 1, "SAME"),
    }
    for what, operation in operations.items():
        of_device, of_cpu = (_on(where, operation) for where in (name, "CPU:0"))
        differs = float(np.abs(of_device - of_cpu).max() / np.abs(of_cpu).max())
        yield Figure(
            what,
            differs,
            f"{what} differs from the CPU's by {differs:.0e} of its largest value",
        )


def _on(device: str, operation: Callable[[], Any]) -> Any:
    import tensorflow as tf

    with tf.device(device):
        return operation().numpy()


def cuda_libraries(maps: str) -> list[str]:
    """The resolved paths of CUDA's libraries in the text of /proc/PID/maps."""
    paths = {line.partition("/")[2] for line in maps.splitlines()}
    return sorted(f"/{path}" for path in paths if _OF_CUDA.match(Path(path).name))
