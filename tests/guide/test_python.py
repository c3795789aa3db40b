"""The Python that README and guide show calls what there is, with arguments that it takes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import gpubalance
from tests.guide.documents import DOCUMENTS, read

_SHOWN = re.compile(
    r"(?s)```python\n(.*?)```|`((?:\w+ = )?(?:gpubalance|split|copy)\.\w+\([^`]*\))`"
)
_CALLED = {"gpubalance": gpubalance, "split": gpubalance.Split}


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """(object's name, function's name, call) for every call of our functions in the documents."""
    for name in DOCUMENTS:
        for block, line in _SHOWN.findall(read(name)):
            for node in ast.walk(ast.parse(block or " ".join(line.split()))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id=of), attr=function)
                    ) if of in _CALLED:
                        yield of, function, node


def test_each_call_that_is_shown_could_be_made() -> None:
    made = list(calls())
    for of, function, call in made:
        itself = [None] if of == "split" else []
        named = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        inspect.signature(getattr(_CALLED[of], function)).bind(
            *itself, *call.args, **named
        )
    assert {function for _, function, _ in made} >= {
        "Split",
        "load_plan",
        "distribute",
        "scope",
        "fit",
        "monitor",
    }
