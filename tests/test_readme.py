"""The README says what is true: its help texts are the program's, its profile keys and exit codes the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from gpubalance import errors
from gpubalance.cli.app import app
from gpubalance.cli.config_file import defaults
from gpubalance.results.checkup import AllReduceTime, Check, Checkup, CopyTime
from gpubalance.results.comparison import (
    Against,
    ComparedDevice,
    ComparedResult,
    Comparison,
    DeviceRatio,
    PointRatio,
    ThroughputRatio,
    Unlike,
)
from gpubalance.results.gap import SoloGap
from gpubalance.results.plan import Balance, LearningRate, LeftOut, Plan, Predicted, Round, Share
from gpubalance.results.probe import BatchLimit, CurvePoint, DeviceProbe, Probe, StepTimeModel, Trial
from gpubalance.results.run import Run
from gpubalance.results.telemetry import Telemetry
from gpubalance.settings.device import DeviceProfile, JointProfile
from tests.cli.program import ROOT, gpubalance
from tests.render.golden import summary

README = (ROOT / "README.md").read_text()
PROGRAM = cast("TyperGroup", typer.main.get_command(app))
COMMANDS = cast("dict[str, TyperCommand]", PROGRAM.commands)
HELP = ("", *sorted(COMMANDS))  # the program's own first


def help_text(command: str) -> str:
    """As in a terminal of 80 columns, without the spaces at the ends of lines."""
    done = gpubalance(*command.split(), "--help", environment={"COLUMNS": "80", "TERM": "dumb"})
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


@pytest.mark.parametrize("command", HELP)
def test_the_help_is_the_programs(command: str) -> None:
    """`python -m tests.readme_help` writes it anew."""
    assert help_text(command) in README


def flags_of(command: TyperCommand | TyperGroup) -> set[str]:
    return {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_in_the_table_and_its_help_has_an_example(command: str) -> None:
    assert re.search(rf"(?m)^\| `gpubalance {command}`", README)
    assert re.search(rf"Example: gpubalance {command}\b", COMMANDS[command].help or "")


def test_each_command_that_is_named_exists() -> None:
    """In text that is set as code; a sentence may begin with the program's name."""
    named = set(re.findall(r"(?m)(?:`|`scripts/|\$ (?:scripts/)?|^next: )gpubalance ([a-z]+)\b", README))
    assert named <= set(COMMANDS)


def test_each_flag_that_is_named_exists() -> None:
    known = flags_of(PROGRAM).union(*map(flags_of, COMMANDS.values()))
    # pip's, nvidia-smi's, docker's, TensorBoard's
    of_others = {"--force-reinstall", "--gpu-reset", "--shm-size", "--ulimit", "--logdir"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README)) - of_others <= known


@pytest.mark.parametrize("line", sorted(set(re.findall(r"gpubalance ((?:[a-z]+) [^`\n]*--[^`\n]*)", README))))
def test_each_command_line_has_flags_of_its_command(line: str) -> None:
    name, *words = line.split()
    assert {word.partition("=")[0] for word in words if re.match("--[a-z]", word)} <= flags_of(COMMANDS[name])


def test_the_config_that_is_shown_is_one(tmp_path: Path) -> None:
    example = re.search(r"(?s)<!-- config example -->\n```toml\n(.*?)```", README)
    assert example is not None
    path = tmp_path / "gpubalance.system.toml"
    path.write_text(example[1])
    found = defaults(path, COMMANDS)
    assert found["run"]["gpus"] == ["0,1"]
    assert found["balance"]["quiet"] is True
    assert found["plan"] == {"simulate": "configs/quick-pair.toml"}


@pytest.mark.parametrize("key", [*DeviceProfile.model_fields, *JointProfile.model_fields])
def test_each_key_of_a_profile_is_documented(key: str) -> None:
    assert f"`{key}`" in README


RECORDS = (
    *(Run, Probe, DeviceProbe, CurvePoint, BatchLimit, Trial, StepTimeModel, Telemetry),
    *(Comparison, ComparedResult, ComparedDevice, Against, Unlike, ThroughputRatio, DeviceRatio, PointRatio),
    *(Plan, Share, Predicted, LeftOut, LearningRate, Balance, Round, SoloGap),
    *(Checkup, Check, CopyTime, AllReduceTime),
)


@pytest.mark.parametrize("name", sorted({name for record in RECORDS for name in record.model_fields}))
def test_each_name_of_a_result_is_documented(name: str) -> None:
    assert re.search(rf"\b{name}\b", README)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_each_profile_that_ships_is_documented(path: Path) -> None:
    assert f"`{path.name}`" in README


def test_the_first_thing_to_try_is_the_one_that_is_promised() -> None:
    first = "scripts/gpubalance run --simulate configs/gtx1080ti-gtx1080.toml --gpus 0 1 --batches 820 568"
    assert README.index("```console") < README.index(first)


def test_each_exit_code_is_documented() -> None:
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.GpubalanceError)]
    assert {k.exit_code for k in kinds} == {int(code) for code in re.findall(r"(?m)^\| (\d) \| ", README)} - {0}


@pytest.mark.parametrize(
    ("mark", "name"), [("example", "pair-run"), ("probe example", "pair-probe"), ("balance example", "pair-balance")]
)
def test_an_example_is_what_the_program_prints_of_a_real_run(mark: str, name: str) -> None:
    assert f"<!-- {mark} -->\n```text\n{summary(name, 80)}\n```" in README
