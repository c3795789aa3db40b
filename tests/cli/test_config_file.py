"""`--config FILE`: what a file says is what the command line would say, and the command line is above it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperArgument, TyperOption

from gpubalance.cli.config import defaults, long_name
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import BadInput, UsageError
from gpubalance.results.plan import Plan
from tests.bench.in_process import Program
from tests.cli.program import QUICK_PAIR, here, start
from tests.guide.documents import COMMANDS, PROGRAM
from tests.jobs.probes import probe_of

FLAGS = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, TyperOption) and long_name(option) not in ("--config", "--help")
]


def parsed(name: str, arguments: list[str]) -> dict[str, Any]:
    """The parameters with which a command is called."""
    command = COMMANDS[name]
    needed = [__file__ for param in command.params if isinstance(param, TyperArgument) and param.required]
    with PROGRAM.make_context("gpubalance", [name]) as root:
        return command.make_context(name, [*arguments, *needed], parent=root).params


def value_of(option: TyperOption) -> tuple[str, Any]:
    """A value for a flag in a file, and its words on the command line, None for a switch."""
    if option.is_flag:
        return ("true", None) if not option.default else ("false", None)
    if option.type_descriptor.choices:
        choice = option.type_descriptor.choices[-1]
        return json.dumps(choice), choice
    if long_name(option) == "--data":
        return json.dumps("train:dataset"), "train:dataset"
    number = max(2, int(option.min or 0))
    number += str(number) == option.default
    return (f"[{number}, {number + 1}]", f"{number},{number + 1}") if option.multiple else (str(number), str(number))


@pytest.mark.parametrize(("name", "option"), FLAGS, ids=[f"{name} {long_name(option)}" for name, option in FLAGS])
def test_each_flag_of_each_command_means_the_same_in_a_file(tmp_path: Path, name: str, option: TyperOption) -> None:
    """Commands that are added later are among them."""
    flag, (written, typed) = long_name(option), value_of(option)
    if option.is_flag and option.default:
        arguments = [option.secondary_opts[0]]
    elif option.multiple:
        arguments = [word for one in typed.split(",") for word in (flag, one)]
    else:
        arguments = [flag] if typed is None else [f"{flag}={typed}"]
    by_hand = parsed(name, arguments)
    assert by_hand != parsed(name, [])
    path = tmp_path / "config.toml"
    key = flag.removeprefix("--")
    texts = [f"[{name}]\n{key} = {written}\n", f"{key.replace('-', '_')} = {written}\n"]
    if flag in ("--micro-batches", "--model"):
        texts.pop()  # other commands take one, so a list for all of them is refused
    for text in texts:
        path.write_text(text)
        assert parsed(name, ["--config", str(path)]) == by_hand


def test_the_command_line_is_above_it_and_a_commands_own_table_above_all_commands(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("model = 'probe'\nseed = 3\n[run]\nmodel = 'small'\ngpus = [0, 1]\nxla = true\n")
    run = parsed("run", ["--config", str(path), "--gpus", "1", "--no-xla"])
    assert (run["model"], run["seed"], run["gpus"], run["xla"]) == ("small", "3", ["1"], False)
    assert parsed("probe", ["--config", str(path)])["model"] == "probe"


@pytest.mark.parametrize("text", ["gpus = [0, 1]", "gpus = ['0', '1']", "gpus = '0 1'", "gpus = '0,1'"])
def test_a_list_is_written_as_one_likes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[run]\n{text}\n")
    assert ",".join(parsed("run", ["--config", str(path)])["gpus"]).replace(" ", ",") == "0,1"


@pytest.mark.parametrize(
    ("text", "says", "remedy"),
    [
        ("[balance]\nglobal_bach = 3", "[balance] global_bach: gpubalance balance has no such option", "global-batch?"),
        ("windows = 1\nglobal-bach = 3", "global-bach: no command has such an option", "did you mean global-batch?"),
        ("[rum]\nwindows = 3", "there is no command [rum]", "did you mean run?"),
        ("[devices]\nzzz = 3", "[devices] zzz: ", "there are: "),
        ("[run.gpus]\nzero = 0", "[run] gpus takes text or a number, not a table", ""),
        ("[run]\ngpus = [[0]]", "[run] gpus takes text or a number, not a list", ""),
        ("[run]\nmodel = ['small']", "[run] model takes one value, not a list", ""),
        ("[run]\nmodel = 2026-11-21", "[run] model takes text or a number, not 2026-11-21", ""),
        ("[run]\nxla = 'yes'", "[run] xla takes true or false, not 'yes'", ""),
        ("[run]\nxla = 1", "[run] xla takes true or false, not 1", ""),
        ('[devices]\nsimulate = "a\\u0000b"', "zero byte", ""),
        ("config = 'other.toml'", "config: no command has such an option", "there are: "),
        ("[run]\nhelp = true", "[run] help: ", ""),
        ("[run]\nno-xla = true", "[run] no-xla: ", "did you mean xla?"),
        ("[run]\ngpus = []", "[run] gpus needs a value", ""),
        ("[run", "is not TOML", ""),
        ("x = " + "[" * 100_000, "is not TOML", ""),
        ("#" * (1 << 20) + "\n", "is larger than 1 MiB", ""),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, says: str, remedy: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises((BadInput, UsageError)) as caught:
        defaults(path, COMMANDS)
    assert isinstance(caught.value, BadInput) == says.startswith("is "), "an option is wrong, or the file"
    assert caught.value.message.startswith(str(path))
    assert says in caught.value.message
    assert remedy in caught.value.remedy


def test_what_can_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "binary", tmp_path / "missing", tmp_path, Path("/dev/zero")):
        with pytest.raises(BadInput):
            defaults(path, COMMANDS)


@pytest.mark.parametrize("before", [True, False])
def test_a_plan_with_the_flags_of_a_file(tmp_path: Path, before: bool) -> None:
    """Paths in it are what they would be on the command line: relative to the folder one is in."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "probe.json").write_text(probe_of(simulated_devices(QUICK_PAIR)[0]).model_dump_json())
    path = folder / "mine.toml"
    path.write_text("quiet = true\nbatch_multiple = 16\n[plan]\nsync = 0.006\noutput = 'plan.json'\n")
    config = ("--config", str(path))
    words = [*config, "plan", "probe.json"] if before else ["plan", "probe.json", *config]
    done = here(*words, "--global-batch", "256", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = Plan.model_validate_json((tmp_path / "plan.json").read_text())
    assert (plan.batch_multiple, plan.sync_s, plan.global_batch) == (16, 0.006, 256)


@pytest.mark.parametrize(
    ("text", "arguments", "code", "says"),
    [
        ("[run]\nwindows = 0", (), 2, "error: --windows takes 1 or more, not 0\n"),
        ("[run]\nwindows = 'many'", (), 2, "error: --windows takes a whole number, not 'many'\n"),
        (
            "precision = 'float31'",
            (),
            2,
            "error: --precision takes 'float32', 'tf32', 'mixed_float16' or 'mixed_bfloat16', not 'float31'\n",
        ),
        ("[run]\nduration = 0", ("--simulate", "2"), 2, "error: --duration takes more than 0, not 0\n"),
        ("simulate = 'nowhere.toml'", (), 4, "error: can't read nowhere.toml"),
        (
            "[run]\nplan = 'p.json'",
            ("--simulate", "2", "--batches", "3", "4"),
            2,
            "error: --batches and --plan",
        ),
        (
            "[run]\nbatches = [3, 4]",
            ("--simulate", "2", "--plan", "p"),
            2,
            "error: --batches and --plan",
        ),
    ],
)
def test_a_wrong_value_is_refused_as_on_the_command_line_and_the_file_is_named(
    in_process: Program, text: str, arguments: tuple[str, ...], code: int, says: str
) -> None:
    Path("mine.toml").write_text(text + "\nseed = 1\n" if text.startswith("[") else text)
    done = in_process(["run", "--config", "mine.toml", *arguments])
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(says)
    flag = text.splitlines()[-1].partition(" ")[0]
    assert f"--{flag} is from mine.toml" in done.err


def test_verbose_may_be_in_it_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("verbose = true\nsimulate = 65\n")
    process = start("devices", "--config", "mine.toml", cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert err.startswith("error: --simulate 65: from 1 to 64 devices\n  → --simulate is from mine.toml\nTraceback")


def test_the_help_shows_its_values_as_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[run]\nwindows = 17\n")
    done = here("run", "--config", "mine.toml", "--help", cwd=tmp_path)
    assert "[default: 17]" in done.stdout
