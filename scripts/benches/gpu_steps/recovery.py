"""What a joint run does after its worker is killed, or after it runs out of memory.

Also whether memory comes back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from gpubalance.numbers.units import format_bytes
from scripts.benches.gpu_steps.place import Figure, Place, StepFailed, ended
from tests.cli.program import children_of, lines_until

# Less than the model takes: memory ends, and halving soon finds what fits.
_BYTES_A_SAMPLE = 3 << 20
_REHEARSED_BYTES = 1 << 10
_REHEARSED_BATCH = 512
_SMALL = "16"
_SHORT = ("--baseline", "none", "--windows", "1", "--duration", "0.5")
_FITS = re.compile(
    r"this fits \(tried\): (--batches[\d -]+?)(?: --micro-batches|\s*$)", re.MULTILINE
)
_GIVES_BACK_WITHIN_S = 30.0


def figures(place: Place) -> Iterator[Figure]:
    """The findings. Raises StepFailed if a run after either does not end well."""
    free = place.free_bytes()
    run = ("run", *place.options(2), "--model", place.model)
    small = ("--batches", _SMALL, _SMALL)
    before = _throughput(place, *run, *small, *_SHORT)
    yield _killed(place, *run, *small)
    yield _memory(place, "memory_after_kill", free)
    part = _throughput(place, *run, *small, *_SHORT) / before
    yield Figure(
        "afterwards",
        part,
        f"the same run afterwards: {part:.3f} of its throughput before",
    )
    minimum = min((card.memory_bytes or 0 for card in place.cards[:2]), default=0)
    of_sample = _REHEARSED_BYTES if place.rehearsed else _BYTES_A_SAMPLE
    batches = (str(minimum // of_sample or _REHEARSED_BATCH), _SMALL)
    began = time.monotonic()
    failed = place.program(*run, "--batches", *batches, *_SHORT, codes=(5,))
    took_s = time.monotonic() - began
    found = _FITS.search(failed.err)
    if found is None:
        raise StepFailed(
            f"out of memory at {'/'.join(batches)}, and no split that fits was told"
        )
    split = found[1].split()
    told = f"{'/'.join(batches)} out of memory, {'/'.join(split[1:])} found in {took_s:.0f} s"
    yield Figure("out_of_memory", {"seconds": took_s, "split": split[1:]}, told)
    yield _memory(place, "memory_after_oom", free)
    rate = _throughput(place, *run, *split, *_SHORT)
    yield Figure("what_fits", rate, f"which runs: {rate:.0f} samples/s")


def _throughput(place: Place, *arguments: str) -> float:
    return float(place.program(*arguments).out["throughput"]["median"])


def _killed(place: Place, *arguments: str) -> Figure:
    words = (*arguments, "--baseline", "none", "--duration", "60", "--json")
    process = place.start(*words)
    lines_until(process, "measuring")
    time.sleep(1.0)  # until it is in its window
    for worker in children_of(process.pid):
        worker.kill()
    began = time.monotonic()
    done = ended(process, words, codes=(6,))
    told_s = time.monotonic() - began
    why = next((line for line in done.err.splitlines() if line.startswith("error")), "")
    told = f"a killed worker is told after {told_s:.1f} s, exit code 6"
    return Figure("killed", {"seconds": told_s, "why": why}, told)


def _memory(place: Place, name: str, before: tuple[int, ...] | None) -> Figure:
    """How long it takes until as much memory is free as before, except a hundredth."""
    if before is None:
        return Figure(name, None, "no GPU's memory to give back")
    began = time.monotonic()
    while (
        free := place.free_bytes() or ()
    ) and time.monotonic() - began < _GIVES_BACK_WITHIN_S:
        if all(now >= 0.99 * then for now, then in zip(free, before, strict=True)):
            seconds = time.monotonic() - began
            return Figure(name, seconds, f"memory is back after {seconds:.1f} s")
        time.sleep(0.2)
    missing = [
        format_bytes(then - now) for now, then in zip(free, before, strict=False)
    ]
    return Figure(
        name,
        missing,
        f"**memory is not back** after {_GIVES_BACK_WITHIN_S:.0f} s: {', '.join(missing)}",
    )
