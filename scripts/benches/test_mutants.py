"""Which small bugs are put into a module, and that a loaded module takes them over."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts.benches.mutation import Mutant, places_in

SOURCE = '''"""A module."""
from typing import Annotated
LIMIT: int = 3
Size = Annotated[int, 7]
def double(numbers: list[int], most: int = 9) -> int:
    """µ: twice their sum."""
    if numbers and sum(numbers) >= LIMIT:
        log("many", numbers)
        return max(2 * sum(numbers), most)
    return sum(n for n in numbers[1:] if n)
class Box:
    @property
    def size(self): return double([1, 2])
'''


def mutants() -> list[Mutant]:
    made = [place.mutant(SOURCE) for place in places_in("box.py", SOURCE)]
    return [mutant for mutant in made if mutant is not None]


def after(line: int) -> set[str]:
    """What a line may become."""
    return {mutant.after.strip() for mutant in mutants() if mutant.line == line}


def test_each_mutant_is_one_change_of_what_runs() -> None:
    assert after(3) == {"LIMIT: int = (4)", "LIMIT: int = (2)"}
    assert after(7) == {
        "if (numbers or sum(numbers) >= LIMIT):",
        "if numbers and (sum(numbers) > LIMIT):",
    }
    assert after(8) == {"pass", "(log(numbers, 'many'))"}
    assert after(9) == {
        "return None",
        "return (min(2 * sum(numbers), most))",
        "return max((2 / sum(numbers)), most)",
        "return max((3) * sum(numbers), most)",
        "return max((1) * sum(numbers), most)",
    }
    assert "return sum((n for n in numbers[1:]))" in after(10)
    assert "return sum(n for n in numbers[:] if n)" in after(10)
    assert not after(4)
    assert not after(6)
    assert len({mutant.source for mutant in mutants()}) == len(mutants())


def test_a_mutants_name_does_not_depend_on_the_lines_before_it() -> None:
    later = f"# Ü\n\n{SOURCE}"
    made = [place.mutant(later) for place in places_in("box.py", later)]
    assert [mutant and mutant.key for mutant in made if mutant] == [
        mutant.key for mutant in mutants()
    ]


@pytest.fixture
def box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModuleType, ModuleType]:
    """The module, and another one that has imported from it."""
    monkeypatch.setenv("MUTANT_STATE", os.devnull)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("tests_box", "tests_user"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "tests_box.py").write_text(SOURCE)
    (tmp_path / "tests_user.py").write_text("from tests_box import *\n")
    return __import__("tests_box"), __import__("tests_user")


@pytest.mark.parametrize(
    ("changed", "by_user"),
    [
        (("2 * sum", "5 * sum"), 15),
        (("most: int = 9", "most: int = 30"), 30),
        (("LIMIT: int = 3", "LIMIT: int = 4"), 2),
        (("[1, 2]", "[3, 4]"), 14),
    ],
)
def test_what_is_loaded_takes_a_mutant_over(
    box: tuple[Any, Any], changed: tuple[str, str], by_user: int
) -> None:
    """Functions that were imported by others, their defaults, properties and constants."""
    from scripts.benches.mutant_tests import _take_over

    module, user = box
    module.log = print
    assert user.Box().size == 9
    _take_over("tests_box.py", SOURCE.replace(*changed))
    assert user.Box().size == by_user
