"""The machine in the program's own view, and the CUDA libraries of a process that has trained a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gpubalance.settings.requests import Settings
from gpubalance.settings.shares import Shares
from tests.bench.gpu.place import Place
from tests.bench.gpu.steps import Figure
from tests.cli.program import QUICK_PAIR

_OF_CUDA = ("libcu", "libnv", "libnccl")


def figures(place: Place) -> Iterator[Figure]:
    """The findings. Raises StepFailed if a command ends with an exit code that means a bug."""
    simulate = ("--simulate", QUICK_PAIR) if place.rehearsed else ()
    listing = place.program("devices", *simulate).out
    names = [one["name"] for one in listing["simulated"] or listing["nvidia"]["gpus"]]
    yield Figure("devices", listing["simulated"] or listing["nvidia"], f"`devices`: {', '.join(names)}")
    checks = place.program("doctor", *simulate, codes=(0, 3)).out
    counts = Counter(one["status"] for one in checks["checks"])
    not_ok = [f"{one['what']} ({one['detail']})" for one in checks["checks"] if one["status"] != "ok"]
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    yield Figure("doctor", checks, f"`doctor`: {told}" + "".join(f"; {one}" for one in not_ok))
    session = place.session(Settings(model=place.model))
    list(session.measure(Shares((8,)), seconds=0, at_least=1, steps_per_timing=1, stamped=True))
    yield Figure("facts", session.facts(), "a step trained")
    found = cuda_libraries(Path("/proc/self/maps").read_text(encoding="utf-8"))
    yield Figure("libraries", found, f"loaded: {', '.join(Path(one).name for one in found) or 'no CUDA library'}")


def cuda_libraries(maps: str) -> list[str]:
    """The resolved paths of CUDA's libraries in the text of /proc/PID/maps."""
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(_OF_CUDA) and ".so" in Path(path).name)
