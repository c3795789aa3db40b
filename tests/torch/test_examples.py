"""The programs that gpubalance has for PyTorch: from times of devices to training in their shares."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpubalance.examples import FOLDER
from tests.cli.program import ROOT
from tests.support.in_process import Program

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("torch")]
_PYTHON = sys.executable  # before a test runs the program in this process
# Of a user's torch_ddp.py: memory ends above 20 samples, once by the kernel's hand.
LOSS = """
def mean_loss(model, x, y):
    if len(x) > 24:
        os.kill(os.getpid(), 9)
    if len(x) > 20:
        raise RuntimeError("CUDA out of memory. Tried to allocate")
    time.sleep(0.005 + 0.001 * len(x))
    return sum(weight.sum() for weight in model.parameters())


def join_ranks"""
TYPO = """
def mean_loss(model, x, y):
    raise ValueError("a typo")


def join_ranks"""


def copied(folder: Path, loss: str = "def join_ranks") -> str:
    """The path of torch_curve.py beside a torch_ddp.py with that loss."""
    for program in FOLDER.glob("torch_*.py"):
        text = program.read_text().replace("def join_ranks", loss.lstrip("\n"), 1)
        (folder / program.name).write_text(text)
    return str(folder / "torch_curve.py")


def run(
    *words: str, folder: Path, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [_PYTHON, *words], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert code in (None, done.returncode), done.stderr
    return done


def test_two_ranks_train_as_one_process_does(tmp_path: Path) -> None:
    """Ten steps in two epochs, in unequal shares and micro-batches, beside whole batches."""
    done = run("-m", "tests.torch.exact", folder=tmp_path)
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(told) == 9
    for found in map(json.loads, told):
        name = found["case"]
        assert found["difference"] < (1e-14 if "float64" in name else 1e-6), name
        assert found["between_ranks"] == 0, name
        assert found["moved"] > 0.1, name
        assert found["counted"] == [1], name


def test_the_curve_has_its_limit_however_memory_ends(tmp_path: Path) -> None:
    words = ("--multiple", "4", "--prefix", "alpha", "times.csv")
    run(copied(tmp_path, LOSS), *words, folder=tmp_path)
    with (tmp_path / "times.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["device"] for row in rows} == {"alpha cpu"}
    fits = {int(row["batch"]): row["seconds"] for row in rows}
    # 32 is killed, 24 raises; between 20 and 24 there is no multiple
    assert list(fits) == [4, 8, 16, 32, 24, 20]
    assert fits.pop(32) == fits.pop(24) == "oom"
    for batch, seconds in fits.items():
        assert float(seconds) > 0.005 + 0.001 * batch


def test_another_error_ends_the_curve(tmp_path: Path) -> None:
    done = run(copied(tmp_path, TYPO), "times.csv", folder=tmp_path, code=1)
    assert "ValueError: a typo" in done.stderr


def test_from_times_to_training_and_back(tmp_path: Path, in_process: Program) -> None:
    """The plan's own line trains, and what it appends makes the next plan."""
    table = tmp_path / "times.csv"
    alone = "a,16,0.05,\na,64,0.1,\nb,16,0.1,\nb,64,0.2,\nb,96,oom,\n"
    table.write_text("device,batch,seconds,joint\n" + alone)
    first = in_process(["plan", "--curve", str(table)])
    assert "warning joint-unknown" in first.out
    (lines,) = re.findall(r"next: cp .*\n  torchrun (.*)\n  torchrun (.*)\n", first.out)
    copied(tmp_path)
    for line in lines:
        words = ["--standalone", *shlex.split(line)]
        # At its very end a process without a GPU may abort, in threads of gloo.
        done = run("-m", "torch.distributed.run", *words, folder=tmp_path, code=None)
    assert re.search(r"epoch 3: \d+\.\d samples/s", done.stdout)
    rows = [row.split(",") for row in table.read_text().splitlines()[-2:]]
    assert [row[0] for row in rows] == ["a", "b"]
    for _, _, own_s, joint_s in rows:
        assert 0 < float(own_s) < float(joint_s)
    second = in_process(["plan", "--curve", str(table)])
    assert second.code == 0
    assert "joint-unknown" not in second.out
    assert "corrected by the steps of several devices together" in second.out


def test_a_table_without_the_column_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("device,batch,seconds\n")
    words = ["--standalone", "--nproc-per-node", "2", str(FOLDER / "torch_joint.py")]
    words += ["old.csv", "--batches", "8", "4"]
    done = run("-m", "torch.distributed.run", *words, folder=tmp_path, code=1)
    assert "the first line of old.csv must be device,batch" in done.stderr
