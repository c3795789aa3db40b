"""`gpubalance report` as a user runs it: what it writes, what it prints, and what it refuses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpubalance.cli.report import Wanted, report
from gpubalance.errors import GpubalanceError
from tests.cli.program import ROOT, here
from tests.render import samples


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return Path(shutil.copy(samples.BALANCE, tmp_path / "plan.json"))


def test_a_page_and_pictures_of_two_results_of_one_name(tmp_path: Path) -> None:
    paths = [tmp_path / name / "run.json" for name in ("one", "other")]
    for path in paths:
        path.parent.mkdir()
        shutil.copy(samples.RUN, path)  # which has the fewest charts
    page, folder = tmp_path / "report.html", tmp_path / "charts"
    done = here("report", *map(str, paths), "--html", str(page), "--png", str(folder))
    assert (done.returncode, done.stdout) == (0, "")
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert re.findall(r'href="#(result-\d)"', html) == ["result-1", "result-2"]
    names = {f"run{number}-{chart}.png" for number in ("", "-2") for chart in ("course", "memory", "step")}
    assert {path.name for path in folder.iterdir()} == names
    assert done.stderr == f"wrote {page}\nwrote 6 charts into {folder}\n"

    with pytest.raises(GpubalanceError, match="exists") as caught:
        report(paths[:1], Wanted(png=folder))
    assert caught.value.remedy == "give another --png, or --overwrite"
    report(paths[:1], Wanted(html=page, overwrite=True, quiet=True))
    assert len(page.read_text(encoding="utf-8")) < len(html)


def test_tables_go_to_stdout_beside_a_page(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = samples.document(plan)["balance"]["run"]
    report([plan], Wanted(markdown=True))
    printed = capsys.readouterr()
    assert printed.out.startswith(f"## plan.json: batches {' '.join(map(str, run['batches']))}: ")
    assert f"{run['throughput']['median']:.0f} samples/s ±" in printed.out
    assert printed.err == ""
    a_run = Path(shutil.copy(samples.RUN, tmp_path / "run.json"))
    report([a_run], Wanted(csv=True, png=tmp_path / "charts", quiet=True))
    printed = capsys.readouterr()
    assert printed.out.startswith('"file","kind","created","table",')
    assert printed.err == ""
    assert (tmp_path / "charts" / "run-step.png").exists()


def test_without_the_extra_the_error_says_how_to_install_it(plan: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules.update(matplotlib=None, jinja2=None); from gpubalance.cli.app import main; main()"
    page = tmp_path / "a.html"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "report", str(plan), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ, cwd=ROOT, check=False)

    done = run("--html", str(page))
    assert done.returncode == 3
    first, second = done.stderr.splitlines()
    assert first == "error: matplotlib and jinja2, which draw the report, are not installed"
    assert "pip install matplotlib jinja2" in second
    assert not page.exists()
    assert run("--markdown").returncode == 0
