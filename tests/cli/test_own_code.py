"""The name of a user's function, told to be wrong by its file before TensorFlow is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import here
from tests.support.cases import cases

TRAIN = """
from functools import partial
import elsewhere

def build(width=8): ...
def dataset(): ...
def of(path, *, size): ...
made = partial(build, 3)

raise RuntimeError("it is read, not run")
"""


HAS = "it has: build, dataset, of"
UNNAMED = f"name the function: --model train.py:build; {HAS}"


@cases(
    "named, code, told",
    ("--model train.py", 4, UNNAMED),
    ("--model train.py:build --data train.py", 4, "function: --data train.py:dataset;"),
    ("--model train.py:biuld", 4, f"train.py has no function 'biuld'\n  → {HAS}"),
    ("--model train.py:of", 4, "train.py:of needs arguments: path, size\n  → give "),
    ("--model trian.py", 2, "file trian.py does not exist\n  → give the path: --model"),
    ("--model broken.py:build", 4, "broken.py, line 1: "),
)
@pytest.mark.usefixtures("in_process")
def test_a_name_that_is_wrong_is_told_before_tensorflow_starts(
    named: str, code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    Path("broken.py").write_text("def build(:\n")
    done = here("run --simulate 2 --batches 16 8", *named.split(), code=code)
    assert told in done.stderr
    assert "starting TensorFlow" not in done.stderr


def test_an_option_before_the_command_is_told_where_it_belongs() -> None:
    done = here("--simulate", "2", "run", "--batches", "16", "8", code=2)
    says = "put it after the command: gpubalance run --simulate 2 --batches 16 8"
    assert says in done.stderr
