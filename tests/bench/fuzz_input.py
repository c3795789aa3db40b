"""What `scripts/bench fuzz` feeds: real files with something wrong in them, and structures that are no file at all."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.cli.program import ROOT

RESULTS = sorted((ROOT / "tests/render/data").glob("pair-*.json"))
PROFILES = sorted((ROOT / "configs").glob("*.toml"))

ESCAPES = ("\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\u202e", "[red]", "[/]", "<b>", "\x00", "\r\n", "\u2028", "𝒳")
text = st.one_of(
    st.sampled_from([*ESCAPES, "", " ", "x" * 10_000, "SIM-0", "GPU:0", "évil.py:build", "__import__('os')"]),
    st.text(max_size=20),
    st.lists(st.sampled_from([*ESCAPES, "GeForce", "-", "0"]), max_size=5).map("".join),
)
number = st.one_of(
    st.sampled_from([0, -1, 1, 2, 8, 10**9, 10**9 + 1, 2**31, 2**63, 10**30, 10**400]),
    st.sampled_from([0.0, -0.0, 1e-320, 1e-9, 0.5, 1e308, -1e308, float("nan"), float("inf"), float("-inf")]),
    st.integers(),
    st.floats(),
)
scalar = st.one_of(st.none(), st.booleans(), number, text)
structure = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=8
)
keys = st.sampled_from(["kind", "schema_version", "device", "joint", "name", "batches", "devices", "drift", "alpha_s"])
document = st.dictionaries(keys | text, structure, max_size=6)


@cache
def _result(path: Path) -> Any:
    return json.loads(path.read_text())


@st.composite
def mutated_json(draw: Any) -> bytes:
    """A real result with up to three of its values changed; or cut off, or overwritten."""
    content = copy.deepcopy(_result(draw(st.sampled_from(RESULTS))))
    for _ in range(draw(st.integers(1, 3))):
        change(draw, content)
    return _spoiled(draw, json.dumps(content).encode("utf-8", "surrogatepass"))


def change(draw: Any, content: Any) -> None:
    """Replaces, takes away or doubles one value of a structure, however deep it lies."""
    while True:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        old = content[key]
        if not isinstance(old, dict | list) or draw(st.integers(0, 3)) == 0:
            break
        content = old
    how = draw(st.sampled_from(("replace", "replace", "replace", "drop", "double")))
    if how == "replace":
        content[key] = draw(number if isinstance(old, int | float) and draw(st.booleans()) else structure)
    elif how == "drop":
        del content[key]
    elif isinstance(content, list):
        content.append(copy.deepcopy(old))
    else:
        content[draw(text)] = old


@st.composite
def any_json(draw: Any) -> bytes:
    """A structure of no meaning, or one nested more deeply than any parser likes."""
    if draw(st.integers(0, 4)) == 0:
        depth = draw(st.sampled_from([10, 150, 250, 1000, 5000, 100_000]))
        opening, closing = draw(st.sampled_from([("[", "]"), ('{"a":', "}"), ('{"kind":"plan","devices":[', "]}")]))
        whole: bool = draw(st.booleans())
        return f"{opening * depth}{'0' + closing * depth if whole else ''}".encode()
    head = {"kind": draw(st.sampled_from(["plan", "probe", "run"])), "schema_version": 1} if draw(st.booleans()) else {}
    return _spoiled(draw, json.dumps(head | draw(document)).encode("utf-8", "surrogatepass"))


def _spoiled(draw: Any, content: bytes) -> bytes:
    """The same, or cut off, or with some bytes changed."""
    how = draw(st.sampled_from(("as it is", "as it is", "as it is", "cut", "byte", "mark")))
    if how == "as it is" or not content:
        return content
    at = draw(st.integers(0, len(content) - 1))
    if how == "cut":
        return content[:at]
    if how == "mark":
        return b"\xef\xbb\xbf" + content
    instead: bytes = draw(st.binary(max_size=4))
    return content[:at] + instead + content[at + 1 :]


literal = st.one_of(
    st.sampled_from(
        ["nan", "inf", "-inf", "1e400", "0x7fff_ffff", "1979-05-27T07:32:00Z", "[]", "{}", "[[1, 2]]", "[[0.0, 1.4]]"]
    ),
    st.sampled_from(
        ['"10.5 GiB"', '"1e9 GiB"', '"99999999999 TiB"', '"-1"', '"0"', '"\\u0000"', "'''", "true", "=", ""]
    ),
    number.map(repr),
    text.map(json.dumps),
    st.integers(1, 3000).map(lambda depth: "[" * depth + "]" * depth),
)


@st.composite
def mutated_toml(draw: Any, seeds: tuple[str, ...], names: tuple[str, ...]) -> bytes:
    """A real TOML file with lines replaced, taken away, doubled or added."""
    lines = draw(st.sampled_from(seeds)).splitlines()
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(lines) - 1)))
        how = draw(st.sampled_from(("value", "value", "drop", "double", "add", "table")))
        if how == "value" and lines and "=" in lines[at]:
            lines[at] = f"{lines[at].partition('=')[0]}= {draw(literal)}"
        elif how == "drop" and lines:
            del lines[at]
        elif how == "double" and lines:
            lines.insert(at, lines[at])
        elif how == "table":
            lines.insert(at, draw(st.sampled_from(["[joint]", "[[device]]", "[run]", "[plan]", "[nothing]", "[[]]"])))
        else:
            lines.insert(at, f"{draw(st.sampled_from(names))} = {draw(literal)}")
    return _spoiled(draw, "\n".join(lines).encode("utf-8", "surrogatepass"))
