"""What the program measures in a process of its own, as its JSON."""

from __future__ import annotations

import subprocess

from tests.cli.program import PROGRAM


def measured(*arguments: str) -> str:
    """The result of a command that ends well."""
    command = [PROGRAM, *arguments, "--quiet", "--json"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
