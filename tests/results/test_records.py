"""Real results are read from files.

tests/faults/test_read.py tests how it is told what is wrong in a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from gpubalance.errors import BadInput
from gpubalance.results.common import Count, Number, Positive, Samples, Size, Whole
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record, read_result
from gpubalance.results.run import Run
from tests.cli.program import ROOT
from tests.support.cases import cases

DATA = ROOT / "tests" / "render" / "data"


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem
)
def test_real_results_are_read(path: Path) -> None:
    assert read_result(path).schema_version == 1


def test_a_file_with_more_baselines_than_now_is_read_too(tmp_path: Path) -> None:
    content = json.loads((DATA / "pair-run.json").read_text())
    even = content["baselines"]["even"]
    content["baselines"] |= {"largest_even": even, "best_at_largest_even": None}
    path = tmp_path / "older.json"
    path.write_text(json.dumps(content))
    assert read_record(path, Run) == read_record(DATA / "pair-run.json", Run)


def test_texts_of_a_file_are_harmless_to_show(tmp_path: Path) -> None:
    name = "\x1b[31mred\x1b[0m \x9b2J\u202e[red]<b>"
    content = json.loads((DATA / "pair-balance.json").read_text())
    content["devices"][0]["name"] = name
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content))
    assert read_record(path, Plan).devices[0].name == "red [red]<b>"


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(b"\xef\xbb\xbf" + (DATA / "pair-probe.json").read_bytes())
    assert read_record(path, Probe).kind == "probe"


def test_a_file_that_is_too_large_for_a_result_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    for size, is_large in ((32 << 20, False), ((32 << 20) + 1, True)):
        with path.open("wb") as file:
            file.truncate(size)
        with pytest.raises(BadInput) as caught:
            read_result(path)
        assert ("larger than 32 MiB" in caught.value.message) == is_large


@cases(
    "kind, minimum, maximum",
    (Number, -(10.0**18), 10.0**18),
    (Whole, -(10**18), 10**18),
    (Count, 0, 10**18),
    (Samples, 0, 10**9),
    (Size, 1, 10**9),
    ids=["number", "whole", "count", "samples", "size"],
)
def test_no_number_is_beyond_its_bounds(
    kind: Any, minimum: float, maximum: float
) -> None:
    read = TypeAdapter(kind).validate_python
    assert (read(minimum), read(maximum)) == (minimum, maximum)
    for beyond in (minimum - max(1, abs(minimum) / 100), maximum + maximum / 100):
        with pytest.raises(ValidationError):
            read(type(maximum)(beyond))


def test_a_time_is_above_a_trillionth_of_a_second() -> None:
    read = TypeAdapter(Positive).validate_python
    assert [read(value) for value in (1.01e-12, 0.99e12)] == [1.01e-12, 0.99e12]
    for beyond in (1e-12, 1e12, -1.0):
        with pytest.raises(ValidationError):
            read(beyond)
