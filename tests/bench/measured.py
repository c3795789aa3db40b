"""Runs the program in its own process for its JSON."""

from __future__ import annotations

import subprocess

from tests.cli.program import PROGRAM


def measured(*arguments: str) -> str:
    """The JSON of a command, which must end well."""
    command = [PROGRAM, *arguments, "--json", *(["--quiet"] if arguments[0] != "plan" else [])]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
