"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def python(
    *words: str,
    env: Mapping[str, str] | None = None,
    only: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    **how: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs it with these words and more variables, from the checkout; keeps what it prints.

    With `only`, it has no other variables.
    """
    command = [sys.executable, *words]
    variables = only or os.environ | dict(env or {})
    printed: dict[str, Any] = {"capture_output": True, "text": True}
    return subprocess.run(command, cwd=cwd, env=variables, **printed | how)
