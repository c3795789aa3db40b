"""A model of eight blocks that trains nothing.

It stands in the place of gpubalance.engine.pipeline.session: see session.py.

Blocks have an eighth each of a profile's time and memory, and send a kilobyte a sample to the next.
Steps take what the simulated schedule says, and are only counted. The script may have

    step(devices, segments, number)    called at each timing of the pipeline, counted from 1 in each worker
    held(device)                       bytes that a device holds in the pipeline beside what its profile says
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpubalance.planning.pipeline.problem import (
    Block,
    BlockLoad,
    Cut,
    CutProblem,
    Edge,
    Graph,
)
from gpubalance.planning.pipeline.schedule import simulate
from gpubalance.results.timing import BlockTimed, Timing

if TYPE_CHECKING:
    from tests.stand_in.session import Session
else:
    from gpubalance.engine.session import Session  # in a worker the same

_NAMES = ("conv2d", *(f"conv2d_{number}" for number in range(1, 8)))


class LayersSession(Session):
    """A stand-in with the interface of the real LayersSession."""

    def __init__(
        self, devices: Any, settings: Any, joint: Any, *, seed: int, cuts: Any
    ) -> None:
        self._joint = joint
        self._peaks: tuple[int | None, ...] = (None,) * len(devices)
        super().__init__(devices, settings, joint, seed=seed)
        starts = [0, *sorted(map(_NAMES.index, cuts))] if cuts else list(range(8))
        blocks = []
        for start, end in zip(starts, [*starts[1:], 8], strict=True):
            size = end - start
            of_block = size, 1000 * size, 1000 * size, size / 8
            blocks.append(Block(_NAMES[start], *of_block))
        edges = tuple(Edge(n, (n + 1,), 1024) for n in range(len(blocks) - 1))
        self._graph = Graph(tuple(blocks), edges)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"graph": self._graph}

    def _load(self, device: Any, micro_batch: int) -> BlockLoad:
        profile = device.profile
        sizes = micro_batch, profile.compute_s(micro_batch)
        return BlockLoad.by_profile(self._graph, profile, *sizes)

    def time_blocks(
        self, blocks: Any, micro_batch: int, *, seconds: float, at_least: int
    ) -> Any:
        del seconds
        load = self._load(self._devices[0], micro_batch)
        for block in blocks:
            held_bytes = load.fixed_bytes[block] + load.live_bytes[block]
            if load.memory_bytes and held_bytes > load.memory_bytes:
                _run_out(0)
            yield BlockTimed(
                block=block,
                micro_batch=micro_batch,
                forward_s=(load.forward_s[block],) * at_least,
                backward_s=(load.backward_s[block],) * at_least,
                update_s=(load.update_s[block],) * at_least,
                fixed_bytes=round(load.fixed_bytes[block]),
                held_bytes=round(load.live_bytes[block]),
                working_bytes=0,
            )

    def pipe(
        self,
        segments: Any,
        order: Any,
        micro_batch: int,
        micro_batches: int,
        *,
        seconds: float,
        at_least: int,
        steps_per_timing: int,
        stamped: bool,
        patience_s: float | None,
    ) -> Any:
        del seconds, patience_s
        loads = tuple(self._load(device, micro_batch) for device in self._devices)
        joint = self._joint
        link = joint.link_latency_s, joint.link_bytes_per_s
        problem = CutProblem(self._graph, loads, micro_batch, micro_batches, *link)
        cut = Cut(problem, segments)
        self._hold_cut(cut, order)
        timeline = simulate(cut, order)
        # A real device looks for what it is sent when it needs it.
        tasks = tuple(task._replace(ready_s=task.start_s) for task in timeline.tasks)
        timeline = replace(timeline, tasks=tasks)
        for _ in range(at_least):
            self._number += 1
            self._call("step", self._devices, segments, self._number)
            steps = 1 if stamped else steps_per_timing
            step_s = timeline.step_time_s
            taken: Any = {"seconds": steps * step_s, "input_wait_s": 0.0}
            if stamped:
                taken |= {"timeline": timeline, "step_s": step_s}
            yield Timing(steps=steps, **taken)

    def _hold_cut(self, cut: Cut, order: Any) -> None:
        peaks = [round(cut.held(tasks)[0]) for tasks in order]
        for number, device in enumerate(self._devices):
            if peaks[number]:
                peaks[number] += self._call("held", device) or 0
        for number, (device, peak) in enumerate(zip(self._devices, peaks, strict=True)):
            if device.profile.memory and peak > device.profile.memory:
                _run_out(number)
        self._peaks = tuple(peaks)

    def late_part(self) -> float | None:
        return 0.0

    def memory_peaks(self) -> tuple[int | None, ...]:
        return self._peaks


def _run_out(replica: int) -> None:
    import tensorflow as tf

    raise tf.errors.ResourceExhaustedError(None, None, f"OOM on replica {replica}")
