"""Reads README.md and the chapters, with the commands and the examples in them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import typer
from typer.core import TyperCommand, TyperGroup

from gpubalance.cli.app import app
from tests.cli.program import ROOT

FOLDER = ROOT / "gpubalance" / "guide"
DOCUMENTS: dict[str, Path] = {
    "README": ROOT / "README.md",
    **{p.stem: p for p in sorted(FOLDER.glob("*.md"))},
}
PROGRAM = cast("TyperGroup", typer.main.get_command(app))
COMMANDS = cast("dict[str, TyperCommand]", PROGRAM.commands)


def read(name: str) -> str:
    """The Markdown of a document."""
    return DOCUMENTS[name].read_text(encoding="utf-8")


def flags_of(command: TyperCommand | TyperGroup) -> set[str]:
    """Every way to write a command's options."""
    return {
        flag
        for param in command.params
        for flag in (*param.opts, *param.secondary_opts)
    } | {"--help", "-h"}
