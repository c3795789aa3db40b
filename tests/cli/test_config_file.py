"""`--config FILE`: a file says what the command line would say, and the command line wins."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperArgument, TyperOption

from gpubalance.cli.command import defaults, options_of
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import BadInput, UsageError
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from tests.cli.program import QUICK_PAIR, here, start
from tests.guide.documents import COMMANDS, PROGRAM
from tests.jobs.probes import probe_of
from tests.render.samples import BALANCE
from tests.support.cases import cases
from tests.support.in_process import Program

FLAGS = [
    (name, flag, option)
    for name, command in COMMANDS.items()
    for flag, option in options_of(command)
]


def parsed(name: str, arguments: list[str]) -> dict[str, Any]:
    """The parameters with which a command is called."""
    command = COMMANDS[name]
    arguments_of = [one for one in command.params if isinstance(one, TyperArgument)]
    needed = [__file__ for one in arguments_of if one.required]
    with PROGRAM.make_context("gpubalance", [name]) as root:
        words = [*arguments, "--", *needed]
        return command.make_context(name, words, parent=root).params


def value_of(option: TyperOption) -> tuple[str, Any]:
    """A value for a flag in a file, and its words on the command line, None for a switch."""
    if option.is_flag:
        return ("true", None) if not option.default else ("false", None)
    if option.type_descriptor.choices:
        choice = option.type_descriptor.choices[-1]
        return json.dumps(choice), choice
    number = max(2, int(option.min or 0))
    number += str(number) == option.default
    if option.multiple:
        return f"[{number}, {number + 1}]", f"{number},{number + 1}"
    return str(number), str(number)


@pytest.mark.parametrize(
    ("name", "flag", "option"), FLAGS, ids=[f"{name} {flag}" for name, flag, _ in FLAGS]
)
def test_each_flag_of_each_command_means_the_same_in_a_file(
    tmp_path: Path, name: str, flag: str, option: TyperOption
) -> None:
    """Commands that are added later are among them."""
    written, typed = value_of(option)
    if option.is_flag and option.default:
        arguments = [option.secondary_opts[0]]
    elif option.multiple:
        arguments = [word for one in typed.split(",") for word in (f"--{flag}", one)]
    else:
        arguments = [f"--{flag}"] if typed is None else [f"--{flag}={typed}"]
    by_hand = parsed(name, arguments)
    assert by_hand != parsed(name, [])
    path = tmp_path / "config.toml"
    of_all = f"{flag.replace('-', '_')} = {written}\n"
    for text in (f"[{name}]\n{flag} = {written}\n", of_all):
        path.write_text(text)
        assert parsed(name, ["--config", str(path)]) == by_hand


def test_the_command_line_is_above_it_and_a_commands_own_table(tmp_path: Path) -> None:
    """The command line is above it and a command's own table above all commands."""
    path = tmp_path / "config.toml"
    of_run = "[run]\nmodel = 'small'\ngpus = [0, 1]\nxla = true\n"
    path.write_text(f"model = 'probe'\nseed = 3\n{of_run}")
    run = parsed("run", ["--config", str(path), "--gpus", "1", "--no-xla"])
    assert (run["model"], run["seed"]) == ("small", "3")
    assert (run["gpus"], run["xla"]) == (["1"], False)
    assert parsed("probe", ["--config", str(path)])["model"] == "probe"


@cases("text", "gpus = [0, 1]", "gpus = ['0', '1']", "gpus = '0 1'", "gpus = '0,1'")
def test_a_list_is_written_as_one_likes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[run]\n{text}\n")
    found = ",".join(parsed("run", ["--config", str(path)])["gpus"]).replace(" ", ",")
    assert found == "0,1"


def test_a_margin_for_each_device_is_no_commands_table(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    by_hand = parsed("probe", ["--margin", "0=2GiB,1=1GiB"])
    for table in ("", "[probe]\n"):
        path.write_text(f"{table}margin = {{0 = '2GiB', 1 = '1GiB'}}\n")
        assert parsed("probe", ["--config", str(path)]) == by_hand


NONE = ": no such command or option"
SWITCH = " takes true or false, not "
TWICE = " is given twice, with - and with _"
MEANT = "did you mean global-batch?"
OF_DEVICES = "there are: hosts, json, quiet, simulate, time-scale, verbose, via"


@cases(
    "text, says, remedy",
    ("[balance]\nglobal_bach = 3", f": [balance] global-bach{NONE}", MEANT),
    ("windows = 1\nglobal-bach = 3", f": global-bach{NONE}", MEANT),
    ("[rum]\nwindows = 3", f": rum{NONE}", "did you mean run?"),
    ("[devices]\nzzz = 3", f": [devices] zzz{NONE}", OF_DEVICES),
    ("config = 'other.toml'", f": config{NONE}", "there are: "),
    ("[run]\nno-xla = true", f": [run] no-xla{NONE}", "did you mean xla?"),
    ("quiet = 0", f": quiet{SWITCH}0", "write true or false"),
    ("[balance]\nfresh = 'no'", f": [balance] fresh{SWITCH}'no'", "without quotes"),
    ("[balance]\nfresh = ''", f": [balance] fresh{SWITCH}''", "without quotes"),
    ("tensorboard = false", ": tensorboard takes a value, not true", "leave it out"),
    ("[run]\nhosts = true", ": [run] hosts takes a value, not true", "leave it out"),
    ("time-scale = 2\ntime_scale = 3", f": time-scale{TWICE}", "leave one of them out"),
    ("[run]\ntime_limit = 9\ntime-limit = 8", f": [run] time-limit{TWICE}", ""),
    ("margins = {0 = '2GiB'}", f": margins{NONE}", "there are: balance, "),
    ("[run", " is not valid TOML", ""),
    ("#" * (1 << 20) + "\n", " is larger than 1 MiB", ""),
    ids=lambda text: text[:30],
)
def test_wrong_options_are_told(
    tmp_path: Path, text: str, says: str, remedy: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises((BadInput, UsageError)) as caught:
        defaults(path, COMMANDS)
    # An option is wrong, or the file
    assert isinstance(caught.value, BadInput) == says.startswith(" is ")
    assert caught.value.message.startswith(f"{path}{says}")
    assert remedy in caught.value.remedy


def test_what_can_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "binary", tmp_path, Path("/dev/zero")):
        with pytest.raises(BadInput):
            defaults(path, COMMANDS)
    with pytest.raises(UsageError, match="No such file"):
        defaults(tmp_path / "missing", COMMANDS)


@cases("before", True, False)
def test_a_plan_with_the_flags_of_a_file(tmp_path: Path, before: bool) -> None:
    """Paths in it are what they would be on the command line: relative to the folder one is in."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    probe = probe_of(simulated_devices(QUICK_PAIR)[0])
    (tmp_path / "probe.json").write_text(probe.model_dump_json())
    path = folder / "mine.toml"
    of_plan = "[plan]\nsync = 0.006\noutput = 'plan.json'\n"
    path.write_text(f"quiet = true\nbatch_multiple = 16\n{of_plan}")
    config = ("--config", str(path))
    words = ["plan", "probe.json"]
    words = [*config, *words] if before else [*words, *config]
    here(*words, "--global-batch", "256", code=0, cwd=tmp_path)
    plan = read_record(tmp_path / "plan.json", Plan)
    assert (plan.batch_multiple, plan.sync_s, plan.global_batch) == (16, 0.006, 256)


PAIR = ("--simulate", "2")
WRONG = [
    ("[run]\nwindows = 0", (), 2, "--windows '0' should be greater than or equal to 1"),
    ("precision = 'float31'", (), 2, "--precision 'float31' should be 'float32', "),
    ("[run]\ngpus = []", PAIR, 2, "--gpus needs a value"),
    ("[run]\nbatches = []", PAIR, 2, "--batches needs a value"),
    ("[run]\ngpus = [[0]]", PAIR, 2, "there is no device '[0]'"),
    ('[run]\nsimulate = "a\\u0000b"', (), 2, "can't read ab: No such file"),
    ("[run]\nplan = 'p.json'", (*PAIR, "--batches", "3", "4"), 2, "--plan already"),
    ("[run]\nbatches = [3, 4]", (*PAIR, "--plan", "p.json"), 2, "--plan already"),
]


@pytest.mark.parametrize(("text", "arguments", "code", "says"), WRONG)
def test_a_wrong_value_is_refused_and_the_file_is_named(
    in_process: Program, text: str, arguments: tuple[str, ...], code: int, says: str
) -> None:
    """A wrong value is refused as on the command line and the file is named."""
    shutil.copy(BALANCE, "p.json")
    Path("mine.toml").write_text(text)
    done = in_process(["run", "--config", "mine.toml", *arguments])
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(f"error: {says}")
    flag = re.findall(r"[a-z]+", text.removeprefix("[run"))[0]
    assert f"from mine.toml: --{flag}\n" in done.err


def test_verbose_may_be_in_it_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("verbose = true\nsimulate = 65\n")
    process = start("devices", "--config", "mine.toml", cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    refused = "error: --simulate 65: give 1 to 64 devices\n  → from mine.toml: "
    assert err.startswith(f"{refused}--simulate\nTraceback")


def test_the_help_shows_its_values_as_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[run]\nwindows = 17\n")
    done = here("run", "--config", "mine.toml", "--help", cwd=tmp_path)
    assert "[default: 17]" in done.stdout
