"""Lists the texts of the program for an editor: `python -m scripts.messages`.

It writes build/messages.md, grouped by module: strings and f-strings of four words or more outside
docstrings, help texts, the table of known errors, and Jinja templates, each with its line. Regular
expressions and types are no messages, nor is a text without a plain word beside another or a value,
as a path, a format or code is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parent.parent
_SOURCE = _ROOT / "gpubalance"
_OUTPUT = _ROOT / "build" / "messages.md"
_FEWEST_WORDS = 4
_VALUE = re.compile(r"\{.*?\}")
_WORD = re.compile(r"[^\W\d_][\w'’-]*")
_PLAIN_WORD = re.compile(r"\(?[^\W\d_](?:[^\W\d_]|['’-])+\)?[,.:;]?")
_PLAIN_VALUE = re.compile(r"\(?\{\}\)?[,.:;]?")
_MESSAGE_OF_TOML = re.compile(r'(?:message|cause|remedy) = "(.*)"')
_IGNORED_IN_TEMPLATES = (r"(?s)\{%.*?%\}", r"(?s)<style>.*?</style>|<[^>]*>")


class Message(NamedTuple):
    """A text of the program, and the line on which it begins."""

    line: int
    text: str


def text_of(node: ast.expr) -> str | None:
    """The text of a string, an f-string or a sum of these; None for anything else."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(map(_part, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right) if text_of(
            left
        ) or text_of(right):
            return _part(left) + _part(right)
    return None


def _part(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.FormattedValue) else node
    return text_of(node) or f"{{{ast.unparse(value)}}}"


def messages_of_python(source: str) -> Iterator[Message]:
    """The messages in the source of a module; a command's docstring is its help text."""
    tree = ast.parse(source)
    helps: set[ast.AST] = set()
    others: set[ast.AST] = set()  # docstrings, regular expressions, types
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef():
                first = node.body[0] if node.body else None
                if isinstance(first, ast.Expr) and "Example: " not in ast.unparse(
                    first
                ):
                    others.add(first.value)
            case ast.Call(func=ast.Name(id=name)) if name.endswith("_option"):
                helps.update(node.args[1:2])
            case ast.keyword(arg="help"):
                helps.add(node.value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"))):
                others.update(node.args)
            case ast.Call(func=ast.Name(id="cast")):
                others.update(node.args[:1])
    yield from _messages(tree, helps, others)


def _messages(
    node: ast.AST, helps: set[ast.AST], others: set[ast.AST]
) -> Iterator[Message]:
    for child in ast.iter_child_nodes(node):
        text = text_of(child) if isinstance(child, ast.expr) else None
        if not isinstance(child, ast.expr) or text is None:
            yield from _messages(child, helps, others)
        elif child not in others and (child in helps or _is_long(text)):
            yield Message(child.lineno, text)


def _is_long(text: str) -> bool:
    without_values = _VALUE.sub("{}", text)
    words = without_values.count("{}") + len(_WORD.findall(without_values))
    parts = without_values.split()
    plain_words = sum(bool(_PLAIN_WORD.fullmatch(part)) for part in parts)
    plain_values = sum(bool(_PLAIN_VALUE.fullmatch(part)) for part in parts)
    return (
        words >= _FEWEST_WORDS and plain_words >= 1 and plain_words + plain_values > 1
    )


def messages_of_toml(source: str) -> Iterator[Message]:
    """The messages, causes and remedies in the table of known errors."""
    for number, line in enumerate(source.splitlines(), 1):
        if found := _MESSAGE_OF_TOML.match(line):
            yield Message(number, found[1])


def messages_of_template(source: str) -> Iterator[Message]:
    """The lines of a Jinja template, without tags; a value in it stands as {name}."""
    for ignored in _IGNORED_IN_TEMPLATES:
        source = re.sub(ignored, lambda found: "\n" * found[0].count("\n"), source)
    for number, line in enumerate(source.splitlines(), 1):
        text = re.sub(r"\{\{ *(.*?) *\}\}", r"{\1}", line).strip()
        if _is_long(text):
            yield Message(number, text)


def main() -> None:
    readers = {".py": messages_of_python, ".toml": messages_of_toml}
    readers[".j2"] = messages_of_template
    lines = ["# Messages"]
    for path in sorted(_SOURCE.rglob("*")):
        if path.suffix not in readers:
            continue
        place = path.relative_to(_ROOT)
        found = sorted(readers[path.suffix](path.read_text(encoding="utf-8")))
        if found:
            lines += ["", f"## {place}", ""]
        for line, text in found:
            lines.append(f"- {place}:{line}: {text.strip()}".replace("\n", "⏎"))
    _OUTPUT.parent.mkdir(exist_ok=True)
    _OUTPUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{_OUTPUT.relative_to(_ROOT)}: {sum(line[:1] == '-' for line in lines)}")


if __name__ == "__main__":
    main()
