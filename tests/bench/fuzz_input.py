"""The input of `scripts/bench fuzz`: real files with something wrong in them, and arbitrary structures."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gpubalance.jobs.balance.together import TriedSplit
from gpubalance.jobs.measure.timings import Window
from gpubalance.results.timing import Timing
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Flops, Measured, to_line
from tests.cli.program import ROOT
from tests.jobs.drawn import ready
from tests.render.measurements import measurement, step_time
from tests.stand_in import TWO_UNLIKE_GPUS

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
    """A real result with up to three of its values changed, or cut off, or overwritten."""
    content = copy.deepcopy(_result(draw(st.sampled_from(RESULTS))))
    for _ in range(draw(st.integers(1, 3))):
        change(draw, content)
    return _spoiled(draw, json.dumps(content).encode("utf-8", "surrogatepass"))


def change(draw: Any, content: Any) -> None:
    """Replaces, removes or duplicates one value of a structure, at any depth."""
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
    """A meaningless structure, or one nested more deeply than parsers accept."""
    if draw(st.integers(0, 4)) == 0:
        depth = draw(st.sampled_from([10, 150, 250, 1000, 5000, 100_000]))
        opening, closing = draw(st.sampled_from([("[", "]"), ('{"a":', "}"), ('{"kind":"plan","devices":[', "]}")]))
        whole: bool = draw(st.booleans())
        return f"{opening * depth}{'0' + closing * depth if whole else ''}".encode()
    head = {"kind": draw(st.sampled_from(["plan", "probe", "run"])), "schema_version": 1} if draw(st.booleans()) else {}
    return _spoiled(draw, json.dumps(head | draw(document)).encode("utf-8", "surrogatepass"))


def _spoiled(draw: Any, content: bytes) -> bytes:
    """The content as it is, cut off, or with some bytes changed."""
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
    """A real TOML file with lines replaced, removed, duplicated or added."""
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


_FIELDS = (
    "uuid",
    "name",
    "bus",
    "memory",
    "capability",
    "mig",
    "process compute",
    "error all",
    "error name",
    "slice 0 uuid",
)


@st.composite
def scripts(draw: Any) -> str:
    """The script of two GPUs with lines put before it: the first line for a field counts."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        field = draw(st.sampled_from(_FIELDS))
        value = draw(st.one_of(text, text, number.map(str), st.sampled_from(["1", "999", "15"])))
        value = "".join(f"\\x{byte:02x}" for byte in value.encode("utf-8", "surrogatepass")[:2000])
        if field in ("memory", "capability", "mig", "error all", "error name"):
            value = draw(st.sampled_from(["0 0", "1 1", "-1", "15", "999", "18446744073709551615 0", "4 3"]))
        elif field == "process compute":
            pid, size = draw(st.sampled_from(["1", "77", "self"])), draw(st.sampled_from(["none", "1", "99999999"]))
            value = f"{pid} {size} {value}"
        lines.append(f"gpu {draw(st.integers(0, 1))} {field} {value}")
    return "\n".join(lines) + "\n" + TWO_UNLIKE_GPUS


SPLIT = Shares((8, 8))
_PLAIN = Timing(steps=2, seconds=0.5, ended_s=7.5, input_wait_s=0.0)
_STAMPED = Timing(
    steps=1, seconds=0.25, ended_s=7.0, input_wait_s=0.0, compute_s=(0.1, 0.2), update_s=(0.01, 0.02), step_s=0.25
)
_WINDOW = Window(
    timings=(_PLAIN, _PLAIN),
    stamped=(_STAMPED,),
    memory_peak_bytes=(None, 5),
    throttled=((), ("sw-thermal",)),
    late_part=0.5,
)
_ROUND = TriedSplit(
    split=SPLIT,
    measured=measurement((8, 8), step_time(0.2)),
    limits=((0, 8),),
)
_DONE = Measured(memory_peak_bytes=(None, 5), late_part=0.0)
_TALK = [
    json.loads(to_line(one)) for one in (ready(2), _STAMPED, _STAMPED, _STAMPED, _DONE, _PLAIN, _DONE, Flops(step=1e9))
]
_ENTRIES = [
    {"kind": type(one).__name__, "key": "key", "record": one.model_dump(mode="json")} for one in (_WINDOW, _ROUND)
]


@st.composite
def _changed(draw: Any, base: Any) -> Any:
    """The structure with one value changed, or as it is."""
    found = copy.deepcopy(base)
    if draw(st.integers(0, 5)):
        change(draw, found)
    return found


def _line(record: Any) -> bytes:
    return json.dumps(record).encode("utf-8", "surrogatepass")


def talk() -> list[bytes]:
    """All lines that a correct worker says from its start on."""
    return [_line(line) + b"\n" for line in _TALK]


def spoiled_talk() -> st.SearchStrategy[bytes]:
    """A worker's lines with one thing wrong, or none."""
    return _changed(_TALK).map(lambda lines: b"".join(_line(line) + b"\n" for line in lines))


def spoiled_entry() -> st.SearchStrategy[bytes]:
    """A line of a journal."""
    return st.sampled_from(_ENTRIES).flatmap(_changed).map(_line)
