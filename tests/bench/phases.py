"""Where the time of a whole `balance` goes, and how long it said that it would take."""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator

from tests.cli.program import PROGRAM, ROOT

# What a line of the program's progress begins; what begins none of them goes on.
_BEGINNINGS = (
    ("… starting TensorFlow", "worker start"),
    ("… round", "rounds"),
    ("… proving", "warm-up of the proof"),
    ("… warming up", "warm-up of the proof"),
    ("… measuring", "proof"),
)


def phases(name: str) -> Iterator[str]:
    """A line with the seconds of each phase of a fresh `balance` of that profile, and its headline."""
    command = [PROGRAM, "balance", "--simulate", str(ROOT / "configs" / f"{name}.toml"), "--fresh"]
    spent: dict[str, float] = defaultdict(float)
    expected = ""
    phase, began, last_s = "start of the program", time.monotonic(), time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            now_s = time.monotonic()
            spent[phase] += now_s - last_s
            last_s, phase = now_s, _phase(line, phase)
            if line.startswith("… phase 1 ") and line.endswith(" in all\n"):
                expected = line.rpartition("; ")[2].removesuffix(" in all\n")
        assert running.stdout is not None
        result = running.stdout.read()
    spent[phase] += time.monotonic() - last_s
    told = ", ".join(f"{of} {seconds:.0f} s" for of, seconds in spent.items())
    yield f"{name}: {time.monotonic() - began:.0f} s ({expected} by its first line): {told}"
    yield f"{name}: {result.splitlines()[0]}"


def _phase(line: str, before: str) -> str:
    """What a line says is done from now on."""
    if " alone (" in line:
        return f"probe of {line.split()[2]}"
    before = "rounds" if before == "worker start" else before
    return next((phase for beginning, phase in _BEGINNINGS if line.startswith(beginning)), before)
