from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET

from rich.text import Text

from tests.cli.terminal import Seen
from tests.render.picture import COMMAND, PICTURE, kept, screens, svg

_MAX_BYTES = 300_000


def test_the_readme_s_picture_is_what_the_program_showed() -> None:
    """The README's picture is what the program showed of a real balance and loads nothing."""
    text = PICTURE.read_text(encoding="utf-8")
    assert text == svg(kept())
    assert len(text.encode()) < _MAX_BYTES
    ET.fromstring(text)  # noqa: S314  (our own)
    shown = _dense(html.unescape("".join(re.findall(r"<text[^>]*>(.*?)</text>", text))))
    for screen in kept():
        lines = [_dense(Text.from_markup(line).plain) for line in screen.lines]
        assert "".join(lines) in shown
    assert not re.search(
        r"url\((?!#)|href|<script|https?://(?!www\.w3\.org/2000/svg)", text
    )


def test_who_wants_no_motion_sees_the_result() -> None:
    """It moves only for the others; the strip of screens rests at the last."""
    text = svg(kept())
    (rests,) = re.findall(r"(?m)^\.strip \{ transform: (\S+) \}$", text)
    before, motion = text.split("@media (prefers-reduced-motion: no-preference)")
    assert "animation" not in before
    jumps = re.findall(r"% \{ transform: (\S+) \}", motion)
    assert len(jumps) == len(kept())
    assert jumps[-1] == rests
    result = Text.from_markup("\n".join(kept()[-1].lines)).plain
    assert "× the largest even split" in result
    assert result.endswith("\n$")


def test_screens_are_read_every_two_seconds_with_their_colours() -> None:
    """A screen that is as the one before is left out, and the last one is the end's."""
    writes = [(1.0, b"\x1b[2mphase 1\x1b[0m [a]\r\n")]
    writes.append((5.5, b"\x1b[1A\x1b[2K\x1b[32mdone\x1b[0m\r\n"))
    written, moments = b"", []
    for at_s, data in writes:
        written += data
        moments.append((at_s, len(written)))
    first, second, last = screens(Seen(written, (), tuple(moments)))
    command = f"$ {COMMAND}"
    assert first == (0, [command])
    assert second == (2, [command, r"[dim]phase 1[/dim] \[a]"])
    assert last == (6, [command, "[green]done[/green]", "$"])


def _dense(text: str) -> str:
    return "".join(text.split())
