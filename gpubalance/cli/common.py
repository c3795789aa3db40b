"""The options that the program and each of its commands have."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from gpubalance.cli import config as config_file


def _show_help(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        with suppress(SystemExit):  # raised by Rich if the reader of a pipe has gone
            print(ctx.get_help())
        raise typer.Exit


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Take options from a TOML file, unless they are given here.",
        callback=config_file.take,
        is_eager=True,
    ),
]
# Typer's own shows a <bool> beside the option
HelpOption = Annotated[
    bool,
    typer.Option("--help", "-h", metavar="", help="Show this message and exit.", callback=_show_help, is_eager=True),
]


def common(
    verbose: Annotated[bool, typer.Option("--verbose", metavar="", help="Show the traceback of an error.")] = False,
    config: ConfigOption = None,
    help: HelpOption = False,
) -> None:
    """The options of every command, which main() reads."""
