from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET

from tests.render.picture import PICTURE, lines, svg


def test_the_readme_s_picture_is_what_the_program_shows() -> None:
    """The README's picture is what the program shows of the real run and loads nothing."""
    text = PICTURE.read_text(encoding="utf-8")
    assert text == svg()
    ET.fromstring(text)  # noqa: S314  (our own)
    shown = _dense(html.unescape("".join(re.findall(r"<text[^>]*>(.*?)</text>", text))))
    assert all(_dense(line.plain) in shown for line in lines())
    assert not re.search(
        r"url\((?!#)|href|<script|https?://(?!www\.w3\.org/2000/svg)", text
    )


def _dense(text: str) -> str:
    return "".join(text.split())
