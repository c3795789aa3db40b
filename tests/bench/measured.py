"""What the program measures or plans in a process of its own, as its JSON."""

from __future__ import annotations

import subprocess

from tests.cli.program import PROGRAM


def measured(*arguments: str) -> str:
    """The result of a command that ends well."""
    command = [PROGRAM, *arguments, "--json", *(["--quiet"] if arguments[0] != "plan" else [])]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
