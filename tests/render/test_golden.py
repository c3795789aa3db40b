from __future__ import annotations

import pytest

from gpubalance.render.plan import bounds_text
from gpubalance.render.probe import curve_lines
from gpubalance.render.table import warning_lines
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_result
from tests.render.golden import DATA, NAMES, WIDTHS, kept, path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_summary_is_as_it_was_looked_at_short_and_no_line_but_a_command_is_too_wide(name: str, width: int) -> None:
    text = kept(name, width)
    assert text + "\n" == path(name, width).read_text(encoding="utf-8")
    assert max(map(len, text.split("\nnext: ")[0].splitlines())) <= width
    assert "\nnext: gpubalance " in text
    result = read_result(DATA / f"{name}.json")
    run = getattr(getattr(result, "balance", None), "run", None)
    warnings = [*(run.warnings if run else ()), *result.warnings]
    if width == 80:
        assert "samples/s" in text.splitlines()[0]
        assert len(text.splitlines()) - len(warning_lines(warnings)) <= 25


def test_of_devices_none_of_which_is_full_none_would_wait_for_the_others() -> None:
    made = Plan.model_validate_json((DATA / "pair-balance.json").read_text())
    shares = tuple(share.model_copy(update={"binds": "speed"}) for share in made.shares)
    free = made.model_copy(update={"shares": shares})
    given = free.model_copy(update={"predicted": made.predicted.model_copy(update={"by_global_batch": ()})})
    found = (bounds_text(plan) for plan in (free, given))
    assert list(found) == [
        "GPU:0, GPU:1 could take more, but no larger global batch promises clearly more samples/s",
        "GPU:0, GPU:1 could take more of a larger global batch",
    ]


def test_a_curve_with_its_marks_is_whole_at_50_columns() -> None:
    (first, _) = Probe.model_validate_json((DATA / "pair-probe.json").read_text()).probes
    lines = curve_lines(first.curve, 50)
    assert max(map(len, lines)) <= 50
    assert any(line.endswith("± over 1 %") for line in lines)
