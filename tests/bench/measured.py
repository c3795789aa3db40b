"""Runs the program in its own process for its JSON."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from tests.cli.program import PROGRAM


def measured(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """The JSON of a command, which must end well; `environment` has variables to add."""
    command = [PROGRAM, *arguments, "--json", *(["--quiet"] if arguments[0] != "plan" else [])]
    environ = os.environ | (environment or {})
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ).stdout
