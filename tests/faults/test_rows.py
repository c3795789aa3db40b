"""Each row of the list of faults has a test here, and each test elsewhere that is named for one is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.faults.rows import ELSEWHERE, ROWS

TESTS = Path(__file__).parents[1]


def collected(path: Path) -> set[str]:
    """The tests of a file that a plain run of the tests has: none that is left to a campaign as a whole."""
    tree = ast.parse(path.read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
    return {
        function.name
        for function in functions
        if not any(ast.unparse(decorator).startswith("pytest.mark.campaign") for decorator in function.decorator_list)
    }


def rows_of(name: str) -> list[int]:
    """[20, 21] of test_20_21_a_silent_worker…."""
    match = re.match(r"test_((?:\d\d_)+)", name)
    return [int(number) for number in match[1].split("_") if number] if match else []


def test_each_row_has_a_test() -> None:
    here = [name for path in Path(__file__).parent.glob("test_*.py") for name in collected(path)]
    tested = {row for name in here for row in rows_of(name)}
    assert list(ROWS) == list(range(1, 39))
    assert tested == set(ROWS)
    assert set(ELSEWHERE) <= set(ROWS)


def test_each_test_elsewhere_is_there() -> None:
    for place in (place for places in ELSEWHERE.values() for place in places):
        path, _, name = place.partition("::")
        assert name in collected(TESTS / path), place
