"""Shell completion, asked for as a shell asks: by its own script, in a real bash."""

from __future__ import annotations

import inspect
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpubalance.cli.complete import offers
from tests.cli.program import PROGRAM, ROOT, broken, users_variables
from tests.stand_in import TWO_UNLIKE_GPUS, environment
from tests.support.cases import cases
from tests.support.known import known

BASH = shutil.which("bash") or pytest.skip("no bash here", allow_module_level=True)
TWO_HOSTS = str(ROOT / "configs" / "two-hosts.toml")
# Does what readline does: sets the words and the number of the one that is completed.
# Then calls the function.
ASK = """
source "$SCRIPT"
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_gpubalance_completion gpubalance
[ ${#COMPREPLY[@]} = 0 ] || printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module", autouse=True)
def path_with_broken_tensorflow(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Puts a broken TensorFlow before the real one, as nothing here may load it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in broken(tmp_path_factory.mktemp("path")).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bash's completion script, as the program prints it."""
    path = tmp_path_factory.mktemp("completion") / "gpubalance.bash"
    path.write_text(ask_program("source_bash"))
    return path


def said(command: list[str], more: dict[str, str]) -> str:
    """The stdout of a process that must say nothing on stderr."""
    own = users_variables()
    own["PATH"] = f"{Path(PROGRAM).parent}:{own['PATH']}"
    done = subprocess.run(
        command, env=own | more, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


def ask_program(instruction: str, **more: str) -> str:
    return said([PROGRAM], {"_GPUBALANCE_COMPLETE": instruction, **more})


def completed(script: Path, *words: str, more: Mapping[str, str] = {}) -> list[str]:
    """What bash offers for the last word."""
    asked = [BASH, "--norc", "-c", ASK, "bash", "gpubalance", *words]
    return said(asked, {"SCRIPT": str(script), **more}).splitlines()


@cases(
    "words, offered",
    (("--config", "x.toml", "pl"), ["plan"]),
    (("run", "--gpus", "0", "1", "--mi"), ["--micro-batches"]),
    (("run", "--precision", "mixed_b"), ["mixed_bfloat16"]),
    (("balance", "--accumulate", "=", "o"), ["off"]),
    (("run", "--model", "MobileNetV3"), ["MobileNetV3Large", "MobileNetV3Small"]),
    (("run", "--simulate", "=", "3", "--gpus", "=", ""), ["0", "1", "2"]),
    (("run", "--simulate", "4", "--gpus", "0", "2", ""), ["1", "3"]),
    (("run", "--simulate", "4", "--gpus", "0,2,"), ["0,2,1", "0,2,3"]),
    (("run", "--simulate", "nowhere.toml", "--gpus", ""), []),
    (
        ("run", "--simulate", TWO_HOSTS, "--hosts", "alpha,beta", "--gpus", "al"),
        ["alpha:0", "alpha:1"],
    ),
    (("run", "--gpus", ""), []),  # without a driver
    (("run", "--batches", "820", ""), []),
    (("guide", "tr"), ["train", "troubles"]),
)
def test_what_bash_offers(
    script: Path, words: tuple[str, ...], offered: list[str]
) -> None:
    assert completed(script, *words) == offered


def test_commands_and_flags_where_nothing_is_typed_yet(script: Path) -> None:
    assert {"devices", "probe", "balance", "plan", "run"} <= set(completed(script, ""))
    flags = {"--gpus", "--batches", "--config", "--help"}
    assert flags <= set(completed(script, "run", ""))
    assert {"probe", "train"} <= set(completed(script, "guide", ""))


def test_gpus_are_those_of_nvml_with_their_names(script: Path, tmp_path: Path) -> None:
    """GPUs are those of NVML and their names are shown where the shell can."""
    gpus = environment(tmp_path, TWO_UNLIKE_GPUS)
    assert completed(script, "run", "--gpus", "", more=gpus) == ["0", "1"]
    assert completed(script, "run", "--hosts", "alpha", "--gpus", "", more=gpus) == []
    line = "gpubalance run --gpus 0 "
    asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    asked |= gpus
    assert ask_program("complete_fish", **asked) == "1\tNVIDIA GeForce GTX 1080\n"
    assert '"1":"NVIDIA GeForce GTX 1080"' in ask_program("complete_zsh", **asked)


@cases("shell", "bash", "zsh", "fish")
def test_nothing_is_said_of_a_line_that_makes_no_sense(shell: str) -> None:
    line = "gpubalance run --gpus --plan 'x"
    asked = {"_TYPER_COMPLETE_ARGS": line, "COMP_WORDS": line, "COMP_CWORD": "none"}
    assert "rror" not in ask_program(f"complete_{shell}", **asked)


def test_each_word_that_fish_is_told_is_on_one_line() -> None:
    """Each word that fish is told is on one line in a narrow terminal too."""
    asked = {"_TYPER_COMPLETE_ARGS": "gpubalance run --", "COLUMNS": "30"}
    asked["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    told = ask_program("complete_fish", **asked).splitlines()
    assert {line[0] for line in told} == {"-"}


def test_it_installs_itself(tmp_path: Path) -> None:
    """In a home of the test's. The shell is the one that the program is called from."""
    installs = f"{PROGRAM} --install-completion; true"
    installed = said([BASH, "--norc", "-c", installs], {"HOME": str(tmp_path)})
    assert "bash completion installed in" in installed
    assert ".bash_completions/gpubalance.sh" in (tmp_path / ".bashrc").read_text()
    assert completed(tmp_path / ".bash_completions" / "gpubalance.sh", "pl") == ["plan"]


@cases("flag", "--install-completion", "--show-completion")
def test_a_word_beside_it_changes_nothing(flag: str, tmp_path: Path) -> None:
    installs = f"{PROGRAM} {flag} false 2>&1; true"
    refused = said([BASH, "--norc", "-c", installs], {"HOME": str(tmp_path)})
    assert f"error: {flag} takes no arguments" in refused
    assert not list(tmp_path.iterdir())


def test_the_models_are_those_of_keras(tensorflow: Any) -> None:
    """Their names are read in its package, as Keras takes seconds to load."""
    import keras

    found = vars(keras.applications).items()
    models = {name for name, model in found if inspect.isfunction(model)}
    assert models | {"probe", "small"} == set(known(offers("--model", str))())
