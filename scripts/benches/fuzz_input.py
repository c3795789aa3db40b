"""The input of `scripts/bench fuzz`: real files with faults in them, and arbitrary structures."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

import typer
from hypothesis import strategies as st
from hypothesis.strategies import sampled_from

from gpubalance.cli.app import app
from gpubalance.jobs.balance.rounds import TriedSplit
from gpubalance.jobs.measure.window import SimultaneousWindows, Window
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import DeviceProfile
from gpubalance.workers.messages import Flops, Measured, to_line
from tests.cli.program import ROOT
from tests.jobs.drawn import ready
from tests.render.measurements import measurement, step_time
from tests.stand_in import TWO_UNLIKE_GPUS

RESULTS = sorted((ROOT / "tests/render/data").glob("pair-*.json"))
_RESULTS = sampled_from([path.read_text() for path in RESULTS])
# In the current folder, and made again for each case: a case may name it as the file to write.
PAIR = "pair.toml"

ESCAPES = (
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "\u202e",
    "[red]",
    "[/]",
    "<b>",
    "\x00",
    "\r\n",
    "\u2028",
    "𝒳",
)
text = st.one_of(
    sampled_from(
        [
            *ESCAPES,
            "",
            " ",
            "x" * 10_000,
            "SIM-0",
            "GPU:0",
            "évil.py:build",
            "__import__('os')",
        ]
    ),
    st.text(max_size=20),
    st.lists(sampled_from([*ESCAPES, "GeForce", "-", "0"]), max_size=5).map("".join),
)
number = st.one_of(
    sampled_from([0, -1, 1, 2, 8, 10**9, 10**9 + 1, 2**31, 2**63, 10**30, 10**400]),
    sampled_from(
        [
            0.0,
            -0.0,
            1e-320,
            1e-9,
            0.5,
            1e308,
            -1e308,
            float("nan"),
            float("inf"),
            float("-inf"),
        ]
    ),
    st.integers(),
    st.floats(),
)
scalar = st.one_of(st.none(), st.booleans(), number, text)
structure = st.recursive(
    scalar,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4)
    ),
    max_leaves=8,
)
keys = sampled_from(
    [
        "kind",
        "schema_version",
        "device",
        "joint",
        "name",
        "batches",
        "devices",
        "drift",
        "alpha_s",
    ]
)
document = st.dictionaries(keys | text, structure, max_size=6)


@st.composite
def mutated_json(draw: Any) -> bytes:
    """A real result with up to three of its values changed, or cut off, or overwritten."""
    content = json.loads(draw(_RESULTS))
    for _ in range(draw(st.integers(1, 3))):
        change(draw, content)
    return _spoiled(draw, json.dumps(content).encode("utf-8", "surrogatepass"))


def change(draw: Any, content: Any) -> None:
    """Replaces, removes or duplicates one value of a structure, at any depth."""
    while True:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        if not keys:
            return
        key = draw(sampled_from(keys))
        old = content[key]
        if not isinstance(old, dict | list) or draw(st.integers(0, 3)) == 0:
            break
        content = old
    how = draw(sampled_from(("replace", "replace", "replace", "drop", "double")))
    if how == "replace":
        content[key] = draw(
            number
            if isinstance(old, int | float) and draw(st.booleans())
            else structure
        )
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
        depth = draw(sampled_from([10, 150, 250, 1000, 5000, 100_000]))
        opening, closing = draw(
            sampled_from(
                [("[", "]"), ('{"a":', "}"), ('{"kind":"plan","devices":[', "]}")]
            )
        )
        whole: bool = draw(st.booleans())
        return f"{opening * depth}{'0' + closing * depth if whole else ''}".encode()
    head = (
        {"kind": draw(sampled_from(["plan", "probe", "run"])), "schema_version": 1}
        if draw(st.booleans())
        else {}
    )
    return _spoiled(
        draw, json.dumps(head | draw(document)).encode("utf-8", "surrogatepass")
    )


def _spoiled(draw: Any, content: bytes) -> bytes:
    """The content as it is, cut off, or with some bytes changed."""
    how = draw(
        sampled_from(("as it is", "as it is", "as it is", "cut", "byte", "mark"))
    )
    if how == "as it is" or not content:
        return content
    at = draw(st.integers(0, len(content) - 1))
    if how == "cut":
        return content[:at]
    if how == "mark":
        return b"\xef\xbb\xbf" + content
    instead: bytes = draw(st.binary(max_size=4))
    return content[:at] + instead + content[at + 1 :]


_TABLES = sampled_from(
    ["[joint]", "[[device]]", "[run]", "[plan]", "[nothing]", "[[]]"]
)
_LITERALS = (
    *(
        "nan",
        "inf",
        "-inf",
        "1e400",
        "0x7fff_ffff",
        "1979-05-27T07:32:00Z",
        "[]",
        "{}",
        "[[1, 2]]",
        "[[0.0, 1.4]]",
    ),
    *(
        '"10.5 GiB"',
        '"1e9 GiB"',
        '"99999999999 TiB"',
        '"-1"',
        '"0"',
        '"\\u0000"',
        "'''",
        "true",
        "=",
        "",
    ),
)
_nested = st.integers(1, 3000).map(lambda depth: "[" * depth + "]" * depth)
literal = st.one_of(
    sampled_from(_LITERALS), number.map(repr), text.map(json.dumps), _nested
)


@st.composite
def mutated_toml(draw: Any, seeds: tuple[str, ...], names: tuple[str, ...]) -> bytes:
    """A real TOML file with lines replaced, removed, duplicated or added."""
    lines = draw(sampled_from(seeds)).splitlines()
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(lines) - 1)))
        how = draw(sampled_from(("value", "value", "drop", "double", "add", "table")))
        if how == "value" and lines and "=" in lines[at]:
            lines[at] = f"{lines[at].partition('=')[0]}= {draw(literal)}"
        elif how == "drop" and lines:
            del lines[at]
        elif how == "double" and lines:
            lines.insert(at, lines[at])
        elif how == "table":
            lines.insert(at, draw(_TABLES))
        else:
            lines.insert(at, f"{draw(sampled_from(names))} = {draw(literal)}")
    return _spoiled(draw, "\n".join(lines).encode("utf-8", "surrogatepass"))


_TEXTS = ("uuid", "name", "bus", "slice 0 uuid", "process compute")
_NUMBERS = ("memory", "capability", "mig", "error all", "error name")


@st.composite
def scripts(draw: Any) -> str:
    """The script of two GPUs with lines put before it: the first line for a field counts."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        field = draw(sampled_from((*_TEXTS, *_NUMBERS)))
        if field in _NUMBERS:
            value = draw(
                sampled_from(
                    ["0 0", "1 1", "-1", "15", "999", "18446744073709551615 0", "4 3"]
                )
            )
        else:
            said = draw(
                st.one_of(text, text, number.map(str), sampled_from(["1", "999", "15"]))
            )
            value = "".join(
                f"\\x{byte:02x}"
                for byte in said.encode("utf-8", "surrogatepass")[:2000]
            )
        if field == "process compute":
            pid = draw(sampled_from(["1", "77", "self"]))
            size = draw(sampled_from(["none", "1", "99999999"]))
            value = f"{pid} {size} {value}"
        lines.append(f"gpu {draw(st.integers(0, 1))} {field} {value}")
    return "\n".join(lines) + "\n" + TWO_UNLIKE_GPUS


SPLIT = BatchSplit((8, 8))
_PLAIN = Timing(steps=2, seconds=0.5, ended_s=7.5, input_wait_s=0.0)
_PARTS = {"compute_s": (0.1, 0.2), "update_s": (0.01, 0.02), "step_s": 0.25}
_STAMPED = Timing(steps=1, seconds=0.25, ended_s=7.0, input_wait_s=0.0, **_PARTS)
_PEAKS = (None, 5)
_WINDOW = Window(
    timings=(_PLAIN,) * 2,
    stamped=(_STAMPED,),
    memory_peak_bytes=_PEAKS,
    throttled=((), ("sw-thermal",)),
    late_part=0.5,
)
_ROUND = TriedSplit(
    split=SPLIT, measured=measurement((8, 8), step_time(0.2)), limits=((0, 8),)
)
_DONE = Measured(memory_peak_bytes=_PEAKS, late_part=0.0)
_SAID = (ready(2), _STAMPED, _STAMPED, _STAMPED, _DONE, _PLAIN, _DONE, Flops(step=1e9))
_TALK = [json.loads(to_line(one)) for one in _SAID]
_ENTRIES = [
    {"kind": type(one).__name__, "key": "key", "record": one.model_dump(mode="json")}
    for one in (SimultaneousWindows(windows=(_WINDOW,)), _ROUND)
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


# Meaningless, or with one thing wrong or none.
_spoiled_talk = _changed(_TALK).map(
    lambda lines: b"".join(_line(line) + b"\n" for line in lines)
)
_spoiled_entry = sampled_from(_ENTRIES).flatmap(_changed).map(_line)
files = st.one_of(mutated_json(), mutated_json(), any_json())
messages = st.one_of(any_json(), _spoiled_talk, _spoiled_talk, st.binary(max_size=200))
journals = st.lists(any_json() | _spoiled_entry | _spoiled_entry, max_size=4).map(
    b"\n".join
)

_KEYS_OF_PROFILES = (*DeviceProfile.model_fields, "sync_s")
_PROFILES = tuple(
    path.read_text() for path in sorted((ROOT / "configs").glob("*.toml"))
)
profiles = mutated_toml(_PROFILES, _KEYS_OF_PROFILES)

_COMMANDS: Any = typer.main.get_command(app)
# Every flag of every command, as the program has them.
_FLAGS = {
    name: sorted(
        {
            flag
            for param in command.params
            for flag in (*param.opts, *param.secondary_opts)
        }
    )
    for name, command in _COMMANDS.commands.items()
}
# These write into the home folder (a temporary one here) and start a shell to find out which it is.
_NOT_THESE = {"--install-completion", "--show-completion"}
_KEYS = {flag.lstrip("-") for flags in _FLAGS.values() for flag in flags} - {
    "verbose",
    "install-completion",
}
_CONFIG = """simulate = "configs/quick-pair.toml"
quiet = true
[run]
gpus = [0, 1]
batches = [120, 80]
[plan]
sync = 0.01"""
configs = mutated_toml((_CONFIG,), tuple(sorted(_KEYS)))

# Paths are in the current folder only, to touch nobody's files.
_WORDS = st.one_of(
    sampled_from(
        ["--", "=", ",", PAIR, "0", "1", "0,1", "820", "568", "2", "small", "GPU-1080"]
    ),
    sampled_from(["auto", "512MiB", "nan", "1e400"]),
    text.map(lambda word: word.replace("/", "|")),
    number.map(str),
    st.binary(max_size=6).map(lambda content: os.fsdecode(content.replace(b"/", b""))),
)


@st.composite
def command_lines(draw: Any) -> list[str]:
    """A command with up to five of its flags or others, and up to two values of each."""
    command = draw(sampled_from(sorted(_FLAGS)))
    known = [flag for flag in _FLAGS[command] if flag not in _NOT_THESE]
    words = [
        command,
        *(
            ("--simulate", draw(sampled_from([PAIR, "2"])))
            if draw(st.booleans())
            else ()
        ),
    ]
    for _ in range(draw(st.integers(0, 5))):
        flag = draw(sampled_from([*known, "--no-such", ""]))
        values = draw(st.lists(_WORDS, max_size=2))
        words += (
            [f"{flag}={values[0]}"]
            if values and draw(st.integers(0, 3)) == 0
            else [flag, *values]
        )
    return words
