from __future__ import annotations

import pytest

from gpubalance.render.run import warning_lines
from gpubalance.results.records import read_result
from tests.render.golden import DATA, NAMES, WIDTHS, path, summary


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_summary_is_as_it_was_looked_at(name: str, width: int) -> None:
    assert summary(name, width) + "\n" == path(name, width).read_text(encoding="utf-8")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_no_line_but_a_command_is_wider_than_the_terminal(name: str, width: int) -> None:
    prose = summary(name, width).split("\nnext: ")[0]
    assert max(map(len, prose.splitlines())) <= width


@pytest.mark.parametrize("name", NAMES)
def test_a_summary_is_at_most_25_lines_beside_its_warnings_and_begins_with_the_answer(name: str) -> None:
    lines = summary(name, 80).splitlines()
    result = read_result(DATA / f"{name}.json")
    run = getattr(getattr(result, "balance", None), "run", None)
    warnings = [*(run.warnings if run else ()), *result.warnings]
    assert len(lines) - len(warning_lines(warnings)) <= 25
    assert "samples/s" in lines[0]
    assert any(line.startswith("next: gpubalance ") for line in lines)
