"""`--help` of the program and of each command."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpubalance.cli.command import GROUPS
from tests.guide.documents import COMMANDS
from tests.support.cases import cases
from tests.support.in_process import Program
from tests.support.python import python


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_each_of_its_options_and_an_example(
    in_process: Program, name: str
) -> None:
    done = in_process([name, "--help"])
    assert (done.code, done.err) == (0, "")
    for param in COMMANDS[name].params:
        if param.param_type_name == "option":
            for flag in (*param.opts, *param.secondary_opts):
                assert f" {flag} " in done.out
    assert f"Example: gpubalance {name}" in done.out
    assert "<" not in re.sub(r"\d<=x<=\d+|<x<?", "", done.out), "a Python type"
    assert max(map(len, done.out.splitlines())) <= 80
    assert in_process([name, "-h"]).out == done.out


@cases("word", "train", "trian", "fit", ids=str)
def test_who_looks_for_a_command_that_trains_is_sent_to_the_script(
    in_process: Program, word: str
) -> None:
    done = in_process([word])
    assert (done.code, done.out) == (2, "")
    text = f"no command '{word}': your own script trains the model, with the split"
    assert text in done.err
    assert "  → gpubalance guide train" in done.err


def test_the_programs_help_lists_the_commands_in_groups_a_line_each(
    in_process: Program,
) -> None:
    done = in_process(["--help"])
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 80
    for group, commands in GROUPS.items():
        listed = done.out.partition(f"╭─ {group} ─")[2].partition("╰")[0]
        lines = [line.strip("│ ") for line in listed.splitlines()[1:]]
        told = [f"{name:<11}  {about}" for name, about in commands.items()]
        assert [line for line in lines if line] == told


def test_what_measures_has_a_dry_run_and_what_shows_progress_can_be_quiet() -> None:
    """`launch` shows only its script's lines and what was lost; `guide` is text."""
    quiet, dry = (
        {name for name, one in COMMANDS.items() if flag in _flags_of(one)}
        for flag in ("--quiet", "--dry-run")
    )
    measuring = {"probe", "run", "balance", "independent", "layers", "queue"}
    assert dry == {*measuring, "launch"}
    assert quiet == {*COMMANDS} - {"launch", "guide"}


def _flags_of(command: Any) -> set[str]:
    return {flag for param in command.params for flag in param.opts}


@cases(
    "line, command",
    ("run --windows x", "run --help"),
    ("plan --simulate 2", "probe --simulate 2 --gpus 0 1"),
    ("run --simulate 2 --plan none.json", "balance -o none.json"),
)
def test_a_command_in_an_error_is_typed_as_the_program_was_started(
    in_process: Program, monkeypatch: pytest.MonkeyPatch, line: str, command: str
) -> None:
    """Every command that an error names is typed as the program was started."""
    monkeypatch.setenv("GPUBALANCE_STARTED_AS", "scripts/gpubalance")
    assert f"scripts/gpubalance {command}" in in_process(line.split()).err


def test_the_programs_help_loads_no_command_and_no_request() -> None:
    """They would take as long as the rest of the program."""
    code = "import sys; from gpubalance.cli.app import main; sys.argv[1:] = ['--help']\ntry: main()\n"
    code += "finally: print(*sys.modules, file=sys.stderr)"
    loaded = set(python("-c", code, check=True).stderr.split())
    assert "gpubalance.cli.app" in loaded
    commands = {f"gpubalance.cli.{name}" for name in COMMANDS}
    assert not loaded & {"pydantic", "gpubalance.settings.requests", *commands}
