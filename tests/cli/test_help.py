"""`--help` of the program and of each command."""

from __future__ import annotations

from typing import cast

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from gpubalance.cli.app import app
from tests.cli.program import gpubalance, start

PROGRAM = cast("TyperGroup", typer.main.get_command(app))
COMMANDS = cast("dict[str, TyperCommand]", PROGRAM.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_each_of_its_options_and_an_example(name: str) -> None:
    done = gpubalance(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for param in COMMANDS[name].params:
        for flag in (*param.opts, *param.secondary_opts) if param.param_type_name == "option" else ():
            assert f" {flag} " in done.stdout
    assert f"Example: gpubalance {name}" in done.stdout
    assert "<bool>" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert gpubalance(name, "-h").stdout == done.stdout


def test_the_programs_help_lists_the_commands() -> None:
    done = gpubalance("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name, command in COMMANDS.items():
        assert f"│ {name} " in done.stdout
        assert (command.help or "").split(":")[0].split(".")[0][:30] in done.stdout


def test_a_reader_who_closes_the_pipe_is_no_error() -> None:
    program = start("run", "--help")
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    assert (program.stderr.read(), program.wait(60)) == ("", 0)
