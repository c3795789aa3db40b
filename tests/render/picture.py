"""Draws the moving picture at the top of the README: a real balance, as its terminal showed it.

`python -m tests.render.picture` draws it from the screens that are kept in data/. With `record` it
first runs the balance in a terminal of its own, which takes a minute, and keeps what that showed.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.cli.program import PROGRAM
from tests.cli.terminal import Seen, command_in_terminal

PICTURE = Path(__file__).parents[2] / ".github" / "balance.svg"
COMMAND = "gpubalance balance --simulate gtx1080ti-gtx1080 -o plan.json"
_KEPT = Path(__file__).with_name("balance-screens.json")
_COLUMNS, _ROWS = 80, 34
_EVERY_S = 2
# How long the picture shows each screen, and then the result.
_SCREEN_S, _RESULT_S = 0.4, 8.0
_MAX_LINES = 500  # of all that the program prints
# pyte's names of colours as Rich's; the program uses no bright black, which stands for dim.
_STYLES = {"default": "", "brown": "yellow", "brightblack": "dim"}
# Of Rich's picture: the height of a line, in pixels
_LINE = 24.4
_FORMAT = Path(__file__).with_name("picture.svg.txt").read_text(encoding="utf-8")


class Screen(NamedTuple):
    """What a terminal showed so many seconds after the start, as lines in Rich's markup."""

    at_s: int
    lines: list[str]


def record() -> list[Screen]:
    """Runs the balance, and reads its terminal every two seconds and at the end."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": folder,
            "XDG_STATE_HOME": folder,
        }
        status, seen = command_in_terminal(
            ["sh", "-c", f"cd {folder} && exec {COMMAND}"],
            _COLUMNS,
            environment=variables,
            rows=_ROWS,
        )
    if status != 0:
        sys.exit(f"the balance ended with {status}")
    return screens(seen)


def screens(seen: Seen) -> list[Screen]:
    """A terminal's screens, without those that show what the one before showed."""
    return [next(same) for _, same in groupby(_read(seen), lambda screen: screen.lines)]


def _read(seen: Seen) -> Iterator[Screen]:
    # A screen with room for all of the output: the terminal shows its last lines.
    screen = pyte.Screen(_COLUMNS, _MAX_LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {COMMAND}\r\n".encode())
    due_s = done = 0
    for at_s, written in seen.moments:
        while due_s < at_s:
            yield Screen(due_s, _shown(screen))
            due_s += _EVERY_S
        # pyte leaves out what is dim
        stream.feed(seen.written[done:written].replace(b"\x1b[2m", b"\x1b[90m"))
        done = written
    stream.feed(b"$ ")
    yield Screen(round(seen.moments[-1][0]), _shown(screen))


def _shown(screen: pyte.Screen) -> list[str]:
    lines = [_line(screen, row) for row in range(_MAX_LINES)]
    while lines and not lines[-1]:
        lines.pop()
    return lines[-_ROWS:]


def _line(screen: pyte.Screen, row: int) -> str:
    cells = [screen.buffer[row][column] for column in range(_COLUMNS)]
    line = Text()
    for colour, same in groupby(cells, lambda cell: cell.fg):
        line.append("".join(cell.data for cell in same), _STYLES.get(colour, colour))
    line.rstrip()
    return line.markup


def kept() -> list[Screen]:
    """The screens of the balance that was recorded."""
    return [Screen(*one) for one in json.loads(_KEPT.read_text(encoding="utf-8"))]


def svg(shown: Sequence[Screen]) -> str:
    """The picture: the screens as a strip, of which a window shows one after the other.

    Who wants no motion sees the last, as does a viewer without animation.
    """
    console = Console(
        record=True,
        width=_COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    for at_s, lines in shown:
        clock = f"{at_s // 60}:{at_s % 60:02}"
        console.print(Text.assemble((f"{clock:>{_COLUMNS}}", "dim")))
        for line in [*lines, *[""] * (_ROWS - len(lines))]:
            console.print(Text.from_markup(line), no_wrap=True)
    styles, matrix = console.export_svg(
        theme=MONOKAI, code_format="{styles}\0{matrix}", unique_id="t"
    ).split("\0")
    # Nothing lies over a line's end, so none needs to be clipped; no line ends are drawn.
    matrix = re.sub(r' clip-path="[^"]*"|<text [^>]*>\n</text>', "", matrix)
    height = (_ROWS + 1) * _LINE
    whole_s = _SCREEN_S * (len(shown) - 1) + _RESULT_S
    jumps = [
        f"{100 * _SCREEN_S * number / whole_s:.3f}% {{ transform: translateY({-height * number:.1f}px) }}"
        for number in range(len(shown))
    ]
    return _FORMAT.format(
        styles=styles,
        jumps="\n".join(jumps),
        last=f"{-height * (len(shown) - 1):.1f}",
        whole_s=f"{whole_s:.1f}",
        # From character references, each of which is three times as long
        matrix=matrix.replace("&#160;", "\u00a0").replace("</text>", "</text>\n"),
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        _KEPT.write_text(
            json.dumps(record(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    PICTURE.write_text(svg(kept()), encoding="utf-8")
