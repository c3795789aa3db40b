"""An engine that trains nothing, for faults that need a GPU: takes the place of gpubalance.engine.session in a child.

All above it is real: the program, its child processes, messages, deadlines and logs; so is what sorts the exceptions of
a step, for which `import tensorflow` gives their classes and nothing else. What happens is Python, in the file that
ENGINE_STAND_IN_SCRIPT names, which may have

    built(devices)                     called when the model is built
    step(devices, batches, number)     called at each timing, counted from 1 in each child; may return seconds a step
    compute(device, batch)             seconds that a device computes in a step
    needs(device, batch)               bytes that a device needs for a batch
    holds(device, size)                whether so many samples at a time fit; where not, it is out of memory

Steps take no time but what `step` spends; without `compute` a device takes 10 ms and 0.1 ms a sample, by its figures.
"""

from __future__ import annotations

import os
import runpy
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCRIPT = os.environ.get("ENGINE_STAND_IN_SCRIPT")


@dataclass(frozen=True)
class Timing:
    """As the real one."""

    steps: int
    seconds: float
    input_wait_s: float
    compute_s: tuple[float, ...] | None = None
    step_s: float | None = None
    loss: float | None = None


class Session:
    """As the real one, from outside."""

    def __init__(self, devices: Any, settings: Any, joint: Any, *, seed: int) -> None:
        del joint, seed
        self.settings = settings
        self._devices = devices
        self._script = runpy.run_path(_SCRIPT) if _SCRIPT and Path(_SCRIPT).exists() else {}
        self._number = 0
        self._call("built", devices)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._script[name](*arguments) if name in self._script else None

    def facts(self) -> dict[str, Any]:
        return {
            "model": self.settings.model,
            "parameters": 648,
            "gradient_bytes": 2592,
            "tensorflow": "0",
            "keras": "0",
            "cuda": None,
            "cudnn": None,
            "memory_limit_bytes": tuple(device.memory_bytes for device in self._devices),
        }

    def forward_flops(self) -> float | None:
        return None

    def measure(
        self,
        split: Any,
        *,
        seconds: float,
        at_least: int,
        steps_per_timing: int,
        stamped: bool,
    ) -> Any:
        self._hold(split.micro_batches)
        end, given = time.monotonic() + seconds, 0
        spent = 0.0
        while given < at_least or (spent < seconds and time.monotonic() < end):
            self._number += 1
            told = self._call("step", self._devices, split.batches, self._number)
            computes = tuple(
                self._call("compute", device, batch) or 0.010 + 0.0001 * batch
                for device, batch in zip(self._devices, split.batches, strict=True)
            )
            step_s = told or max(computes) + 0.001
            steps = 1 if stamped else steps_per_timing
            spent += steps * step_s
            given += 1
            stamps = {"compute_s": computes, "step_s": step_s} if stamped else {}
            yield Timing(steps, steps * step_s, 0.0, loss=1.0, **stamps)

    def _hold(self, sizes: Any) -> None:
        for replica, (device, size) in enumerate(zip(self._devices, sizes, strict=True)):
            if self._call("holds", device, size) is False:
                import tensorflow as tf

                where = f"on replica {replica}" if device.profile else f"when allocating tensor on GPU:{device.index}"
                raise tf.errors.ResourceExhaustedError(None, None, f"OOM {where}")

    def late_part(self) -> float | None:
        return None

    def memory_peaks(self, split: Any) -> list[int | None]:
        pairs = zip(self._devices, split.micro_batches, strict=True)
        return [self._call("needs", device, batch) for device, batch in pairs]
