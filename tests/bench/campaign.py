"""The long tests that `scripts/test` leaves out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from tests.cli.program import ROOT


def main() -> Iterator[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "campaign"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    yield from (line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
    yield done.stdout.strip().splitlines()[-1]
