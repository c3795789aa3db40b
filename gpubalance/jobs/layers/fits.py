"""Finds what would fit if no cut does, by what was measured: an option to type, and the cut that it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpubalance.numbers.units import format_bytes
from gpubalance.planning.pipeline.place import NoPlacementError, Placement, place
from gpubalance.planning.pipeline.problem import Load, Problem
from gpubalance.settings.device import Device
from gpubalance.settings.shares import run_text


def what_fits(problem_of: Callable[[int], Problem], micro_batch: int, devices: Sequence[Device]) -> str:
    """`--micro-batch 16 fits: GPU:0 blocks 0–8 (0.9 of 1 GiB), …`: the first option that fits, cheap ones first.

    If none fits, the text says what is missing. `problem_of` gives the problem for a micro-batch.
    """
    for option, problem in _less(problem_of, micro_batch):
        try:
            placed = place(problem)
        except NoPlacementError:
            continue
        stages = ", ".join(_stage_texts(placed, devices))
        return f"{option} fits: {stages}"
    return _missing_text(problem_of(1))


def _less(problem_of: Callable[[int], Problem], micro_batch: int) -> Iterator[tuple[str, Problem]]:
    sizes = [micro_batch >> times for times in range(micro_batch.bit_length())]
    for size in sizes[1:]:
        yield f"--micro-batch {size}", problem_of(size)
    for size in sizes:  # one in flight, so that each device waits for all others
        yield f"--micro-batch {size} --micro-batches 1", replace(problem_of(size), micro_batches=1)


def _stage_texts(placed: Placement, devices: Sequence[Device]) -> Iterator[str]:
    for number, device in enumerate(devices):
        own = [run_text(one.first, one.last) for one in placed.segments if one.device == number]
        if own:
            needs, limit = placed.peak_bytes[number], placed.problem.loads[number].memory_bytes
            yield f"{device.label} blocks {' '.join(own)} ({format_bytes(int(needs))} of {limit_text(limit)})"


def limit_text(limit_bytes: float) -> str:
    """A device's memory as text."""
    return format_bytes(int(limit_bytes) if limit_bytes < math.inf else None)


def _missing_text(problem: Problem) -> str:
    """What is missing with one sample in flight, the least possible; a block too large even for that has no times."""
    blocks = range(len(problem.graph.blocks))
    least = [min(_bytes_of(load, block) for load in problem.loads) for block in blocks]
    largest = max(blocks, key=least.__getitem__)
    name = problem.graph.blocks[largest].name
    if not math.isfinite(least[largest]):
        return f"no smaller micro-batch does: {name} is too large with one sample; take a smaller model"
    limits = [load.memory_bytes for load in problem.loads if load.memory_bytes < math.inf]
    return (
        f"no smaller micro-batch does: with one sample in flight all blocks take {format_bytes(int(sum(least)))}, the "
        f"largest, {name}, {format_bytes(int(least[largest]))}, and the devices have {format_bytes(int(sum(limits)))} "
        "together; take more devices, or a smaller model"
    )


def _bytes_of(load: Load, block: int) -> float:
    return load.fixed_bytes[block] + load.live_bytes[block] if math.isfinite(load.forward_s[block]) else math.inf
