from __future__ import annotations

import pytest

from gpubalance.render.probe import curve_lines
from gpubalance.render.summary import warning_lines
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_result
from tests.render.golden import DATA, NAMES, WIDTHS, kept, path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_summary_is_as_it_was_looked_at_and_no_line_but_a_command_is_too_wide(name: str, width: int) -> None:
    text = kept(name, width)
    assert text + "\n" == path(name, width).read_text(encoding="utf-8")
    assert max(map(len, text.split("\nnext: ")[0].splitlines())) <= width


@pytest.mark.parametrize("name", NAMES)
def test_a_summary_is_at_most_25_lines_beside_its_warnings_and_begins_with_the_answer(name: str) -> None:
    lines = kept(name, 80).splitlines()
    result = read_result(DATA / f"{name}.json")
    run = getattr(getattr(result, "balance", None), "run", None)
    warnings = [*(run.warnings if run else ()), *result.warnings]
    assert len(lines) - len(warning_lines(warnings)) <= 25
    assert "samples/s" in lines[0]
    assert any(line.startswith("next: gpubalance ") for line in lines)


def test_a_curve_with_its_marks_is_whole_at_50_columns() -> None:
    (first, _) = Probe.model_validate_json((DATA / "pair-probe.json").read_text()).probes
    lines = curve_lines(first.curve, 50)
    assert max(map(len, lines)) <= 50
    assert any(line.endswith("± over 1 %") for line in lines)
