"""The commands of README and guide run as they stand, and print what is shown below them.

Only figures may differ.

The program is real, in this process, and so is all that it prints. The engine is the stand-in,
which computes as long as the simulated devices' profiles say without taking that time. The figures
in the documents are of real runs: `examples.py` made them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.text import Text

from tests.cli.program import ROOT, here
from tests.guide.documents import DOCUMENTS
from tests.guide.examples import examples
from tests.render.picture import COMMAND, kept
from tests.stand_in import TWO_UNLIKE_GPUS, engine, environment
from tests.support import forks


def words(text: str) -> str:
    """A text without its figures, curves, pictures and line ends."""
    text = re.sub(r"(?m)[FfBbU.-]{40,}$", "▁", text)
    plain = re.sub(r"\d[\d.]*( ?(?:[mµn]?s|[KMG]iB|%)(?!\w))?", "#", text)
    plain = re.sub(r"[▁-█]+", "▁", plain)
    return " ".join(plain.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that a user has in a checkout."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    train = "def build_model(): ...\nbuild = build_model\ndef dataset(): ...\n"
    (tmp_path / "train.py").write_text(train)
    return tmp_path


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if examples(name)])
def test_the_commands_run_and_print_what_is_shown(name: str, folder: Path) -> None:
    gpus = environment(folder, f"{TWO_UNLIKE_GPUS}gpu 0 persistence 0\n")
    for example in examples(name):
        if example.command == ("doctor",) and not example.shown:
            continue  # as where it is shown
        # `doctor` tries the real TensorFlow.
        is_doctor = example.command[0] == "doctor"
        trained = forks.with_tensorflow() if is_doctor else engine(folder)
        seen = {} if "--simulate" in example.command else gpus
        own = {**seen, **trained, **example.environment}
        code = 3 if is_doctor else 0
        done = here(*example.command, code=code, cwd=folder, environment=own)
        printed = words(done.stdout)
        for part in example.shown.split("\n…\n"):
            assert words(part) in printed, (
                f"{example.command} prints\n{done.stdout}\nnot\n{part}"
            )
        if example.shown and "…" not in example.shown:
            assert words(example.shown) == printed


def test_the_picture_ends_with_what_balance_prints(folder: Path) -> None:
    shown = Text.from_markup("\n".join(kept()[-1].lines)).plain.removesuffix("\n$")
    whole = re.sub(r"(?m)^(.{80})\n", r"\1", shown)  # the terminal broke longer lines
    command = COMMAND.removeprefix("gpubalance ")
    done = here(command, cwd=folder, environment=engine(folder))
    assert words(whole) == words(done.stdout)


def test_there_are_examples() -> None:
    every = [example for name in DOCUMENTS for example in examples(name)]
    shown = {example.command[0] for example in every if example.shown}
    commands = {"run", "probe", "independent", "layers", "balance", "compare", "doctor"}
    assert shown == commands
