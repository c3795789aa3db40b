"""`gpubalance report` as a user runs it: what it writes, what it prints, and what it refuses."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpubalance.cli.report import ReportOptions, report
from gpubalance.errors import GpubalanceError
from tests.cli.program import broken, gpubalance, here
from tests.render import samples
from tests.support.cases import cases


def test_a_page_and_pictures_of_two_results_of_one_name(tmp_path: Path) -> None:
    paths = [tmp_path / name / "run.json" for name in ("one", "other")]
    for path in paths:
        path.parent.mkdir()
        shutil.copy(samples.RUN, path)  # which has the fewest charts
    page = tmp_path / "report.html"
    folder = tmp_path / "charts"
    done = here("report", *map(str, paths), "--html", str(page), "--png", str(folder))
    assert (done.returncode, done.stdout) == (0, "")
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert re.findall(r'href="#(result-\d)"', html) == ["result-1", "result-2"]
    charts = ("course", "memory", "step")
    names = {f"run{n}-{chart}.png" for n in ("", "-2") for chart in charts}
    assert {path.name for path in folder.iterdir()} == names
    assert done.stderr == f"wrote {page}\nwrote 6 charts into {folder}\n"

    with pytest.raises(GpubalanceError, match="exists") as caught:
        report(paths[:1], ReportOptions(png=folder))
    assert caught.value.remedy == "give another --png, or --overwrite"
    report(paths[:1], ReportOptions(html=page, overwrite=True, quiet=True))
    assert len(page.read_text(encoding="utf-8")) < len(html)


def test_charts_of_results_with_confusable_names_are_all_written(
    tmp_path: Path,
) -> None:
    """Neither a number that a name got nor one that it has loses a chart, nor a cut name."""
    (tmp_path / "d").mkdir()
    long = 70 * "n"
    names = ("a", "d/a", "d/a-2", f"{long}1", f"{long}2")
    paths = [tmp_path / f"{name}.json" for name in names]
    for path in paths:
        shutil.copy(samples.RUN, path)
    report(paths, ReportOptions(png=tmp_path / "charts", quiet=True))
    written = {path.name for path in (tmp_path / "charts").glob("*-step.png")}
    cut = long[:60]
    stems = ("a", "a-2", "a-2-2", cut, f"{cut}-2")
    assert written == {f"{stem}-step.png" for stem in stems}


def test_tables_go_to_stdout_beside_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run = Path(shutil.copy(samples.RUN, tmp_path / "run.json"))
    report([a_run], ReportOptions(csv=True, png=tmp_path / "charts", quiet=True))
    printed = capsys.readouterr()
    assert printed.out.startswith('"table","file","kind","created",')
    assert printed.err == ""
    assert (tmp_path / "charts" / "run-step.png").exists()


def test_a_copy_to_share_is_written_and_what_it_lacks_is_told(tmp_path: Path) -> None:
    copy = tmp_path / "share.json"
    done = here("report", str(samples.RUN), "--share", str(copy), code=0)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == f"wrote {copy}: {samples.RUN} without"
    assert lines[1:3] == ["  2 UUIDs (now numbers)", "  1 version suffix"]
    assert lines[-1].startswith("nothing was sent")
    again = here("report", str(copy), code=0).stdout.splitlines()[1:]
    assert again == here("report", str(samples.RUN), code=0).stdout.splitlines()[1:]
    for results, says in (
        ([copy], "would overwrite one of the results"),
        ([samples.RUN], "exists"),
        ([samples.RUN, samples.PROBE], "--share takes one result, not 2"),
    ):
        with pytest.raises(GpubalanceError, match=says):
            report(results, ReportOptions(share=copy))


@cases(
    "words",
    ("report", str(samples.RUN), "--html", "-"),
    ("report", str(samples.RUN), "--share", "-"),
    ("run", "--simulate", "2", "--dry-run", "-o", "-"),
)
def test_a_dash_is_no_file_to_write(words: Sequence[str], tmp_path: Path) -> None:
    done = here(*words, code=2, cwd=tmp_path)
    told = f"error: {words[-2]} - would write a file called -, not to stdout\n"
    assert told in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_an_option_it_prints_what_each_command_printed() -> None:
    """Without an option it prints what each command printed and what it can write."""
    done = here("report", str(samples.RUN), str(samples.PROBE), code=0)
    first, second = done.stdout.split("\n\npair-probe.json:\n")
    assert first.startswith("pair-run.json:\nbatches 820 568: ")
    assert "GPU:1   GeForce GTX 1080 " in first
    assert second.startswith("each device alone: ")
    writes = "a page (--html), pictures (--png) and tables (--markdown, --csv)"
    assert done.stderr == f"\nit can write {writes}\n"
    assert here("report", "-q", str(samples.RUN), code=0).stderr == ""


def test_without_the_extra_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = str(samples.BALANCE)
    for name in ("matplotlib", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None)
    done = here("report", result, "--html", str(tmp_path / "a.html"), code=3)
    first, second = done.stderr.splitlines()
    wanted = "error: the report needs matplotlib and jinja2, not installed here"
    assert first == wanted
    assert "pip install '.[report]' in gpubalance's checkout" in second
    assert not (tmp_path / "a.html").exists()
    without = broken(tmp_path, "matplotlib")
    gpubalance(f"report {result} --markdown", code=0, environment=without)
