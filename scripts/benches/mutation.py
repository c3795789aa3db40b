"""Small changes of a module's source, each one a bug that somebody might write."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

Change: TypeAlias = Callable[[Any], Any]

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_OTHER_NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "floor": "ceil",
    "ceil": "floor",
    "median": "max",
    "mean": "median",
    "fmean": "max",
    "exp": "expm1",
    "sqrt": "log1p",
}
# A key is as good in another order, and the other fails at once.
_UNORDERED = ("content_key", "isinstance")


@dataclass(frozen=True)
class Mutant:
    """A change of a module: `source` is all of it with the change, on line `line`."""

    path: str
    line: int
    what: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """The file and its changed lines before and after, whatever lines come before them."""
        return f"{self.path}: {' '.join(self.before.split())} → {' '.join(self.after.split())}"


@dataclass(frozen=True)
class Place:
    """Something in a module that can be changed."""

    path: str
    node: Any
    what: str
    change: Change

    def mutant(self, source: str) -> Mutant | None:
        """The module with this change; None if that is the same or no Python."""
        node = self.node
        text = ast.unparse(self.change(deepcopy(node)))
        if isinstance(node, ast.expr) and not isinstance(node, ast.Slice):
            text = f"({text})"
        # Offsets are in bytes of UTF-8.
        lines = source.encode().splitlines(keepends=True)
        first, last = node.lineno - 1, node.end_lineno
        inside = b"".join(lines[first:last])
        end = len(inside) - len(lines[last - 1]) + node.end_col_offset
        changed = inside[: node.col_offset] + text.encode() + inside[end:]
        mutated = b"".join([*lines[:first], changed, *lines[last:]]).decode()
        if not _differs(source, mutated):
            return None
        before, after = inside.decode(), changed.decode()
        return Mutant(self.path, node.lineno, self.what, before, after, mutated)


def places_in(path: str, source: str) -> Iterator[Place]:
    """All that can be changed in a module."""
    for node in _mutable(ast.parse(source)):
        for what, change in _changes_of(node):
            yield Place(path, node, what, change)
        condition = getattr(node, "test", None)
        if isinstance(condition, ast.Name | ast.Attribute | ast.Call):
            yield Place(path, condition, "condition", _negated)


def _mutable(node: ast.AST) -> Iterator[Any]:
    """What may be changed below a node: no annotation, docstring, decorator or text."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # zip's, of sequences that are as long as each other
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_inert(child):
                continue
            if hasattr(child, "lineno"):
                yield child
            yield from _mutable(child)


def _is_inert(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    # A type's own name: `Batch = Annotated[int, Field(ge=0)]`
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) in (
        "Annotated",
        "Literal",
        "ClassVar",
    )


def _changes_of(node: Any) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp | ast.AugAssign):
        yield from _other_operators(node)
    elif isinstance(node, ast.UnaryOp):
        yield "operator left out", lambda one: one.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node)
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)
    elif isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield "returns None", lambda _: ast.Return(ast.Constant(None))
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        if node.generators[0].ifs:
            yield "filter left out", _without_filter
    elif isinstance(node, ast.Slice):
        for bound in ("lower", "upper"):
            if getattr(node, bound) is not None:
                yield f"no {bound} bound", _without(bound)
    if isinstance(node, ast.Continue | ast.Break | ast.AugAssign | ast.Raise):
        yield "statement left out", lambda _: ast.Pass()
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "statement left out", lambda _: ast.Pass()


def _other_operators(node: Any) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if type(operator) in _SWAPPED:
                yield "comparison", _with_comparison(place)
        return
    is_text = any(
        isinstance(inside, ast.JoinedStr)
        or (isinstance(inside, ast.Constant) and isinstance(inside.value, str))
        for inside in ast.walk(node)
    )
    if type(node.op) in _SWAPPED and (isinstance(node, ast.BoolOp) or not is_text):
        yield "operator", _with_other_operator


def _other_constants(node: ast.Constant) -> Iterator[tuple[str, Change]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", lambda one: ast.Constant(not one.value)
    elif isinstance(value, int):
        yield "constant", lambda one: ast.Constant(one.value + 1)
        yield "constant", lambda one: ast.Constant(one.value - 1)
    elif isinstance(value, float):
        yield (
            "constant",
            lambda one: ast.Constant(1.5 * one.value + 0.1 * (not one.value)),
        )


def _other_calls(node: ast.Call) -> Iterator[tuple[str, Change]]:
    function = node.func
    name = getattr(function, "id", getattr(function, "attr", ""))
    if name in _OTHER_NAMES:
        yield "function", _with_name(_OTHER_NAMES[name])
    is_starred = any(isinstance(argument, ast.Starred) for argument in node.args[:2])
    if (
        len(node.args) >= 2
        and not is_starred
        and name not in (*_OTHER_NAMES, *_UNORDERED)
    ):
        yield "arguments swapped", _with_swapped_arguments
    for place, keyword in enumerate(node.keywords):
        if keyword.arg == "default":
            yield "keyword left out", _without_keyword(place)


def _with_comparison(place: int) -> Change:
    def change(node: ast.Compare) -> ast.Compare:
        node.ops[place] = _SWAPPED[type(node.ops[place])]()  # type: ignore[call-overload]
        return node

    return change


def _with_other_operator(node: Any) -> Any:
    node.op = _SWAPPED[type(node.op)]()
    return node


def _with_name(name: str) -> Change:
    def change(node: ast.Call) -> ast.Call:
        if isinstance(node.func, ast.Attribute):
            node.func.attr = name
        else:
            node.func = ast.Name(name)
        return node

    return change


def _with_swapped_arguments(node: ast.Call) -> ast.Call:
    node.args[:2] = node.args[1], node.args[0]
    return node


def _without_keyword(place: int) -> Change:
    def change(node: ast.Call) -> ast.Call:
        del node.keywords[place]
        return node

    return change


def _without_filter(node: Any) -> Any:
    node.generators[0].ifs = []
    return node


def _without(bound: str) -> Change:
    def change(node: ast.Slice) -> ast.Slice:
        setattr(node, bound, None)
        return node

    return change


def _negated(node: Any) -> ast.UnaryOp:
    return ast.UnaryOp(ast.Not(), node)


def _differs(source: str, mutated: str) -> bool:
    try:
        return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False
