"""The machine in the program's own view, and the CUDA libraries of a process that has trained a step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gpubalance.settings.shares import Shares
from tests.bench.gpu.place import Place
from tests.bench.gpu.steps import Figure
from tests.cli.program import QUICK_PAIR

_OF_CUDA = re.compile(r"lib(cu|nv|nccl).*\.so")


def figures(place: Place) -> Iterator[Figure]:
    """The findings. Raises StepFailed if a command ends with an exit code that means a bug."""
    simulate = ("--simulate", QUICK_PAIR) if place.rehearsed else ()
    listing = place.program("devices", *simulate).out
    seen = listing["simulated"] or listing["nvidia"]["gpus"]
    yield Figure("devices", seen, f"`devices`: {', '.join(one['name'] for one in seen)}")
    checks = place.program("doctor", *simulate, codes=(0, 3)).out["checks"]
    counts = Counter(one["status"] for one in checks)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    not_ok = [f"; {one['what']} ({one['detail']})" for one in checks if one["status"] != "ok"]
    yield Figure("doctor", checks, f"`doctor`: {told}{''.join(not_ok)}")
    session = place.session()
    list(session.measure(Shares((8,)), seconds=0, at_least=1, steps_per_timing=1, stamped=True))
    yield Figure("facts", session.facts(), "a step trained")
    found = cuda_libraries(Path("/proc/self/maps").read_text(encoding="utf-8"))
    names = [Path(one).name for one in found]
    yield Figure("libraries", found, f"loaded: {', '.join(names) or 'no CUDA library'}")


def cuda_libraries(maps: str) -> list[str]:
    """The resolved paths of CUDA's libraries in the text of /proc/PID/maps."""
    paths = {line.partition("/")[2] for line in maps.splitlines()}
    return sorted(f"/{path}" for path in paths if _OF_CUDA.match(Path(path).name))
