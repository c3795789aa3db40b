"""Text of a result in a file that a spreadsheet or a Markdown reader opens: shown, never acted on."""

from __future__ import annotations

import re

from gpubalance.text import clean

_LONGEST = 500
# A spreadsheet takes these as the start of a formula, the wide forms too: at a cell's start, and after what another
# country's spreadsheet takes for the end of a cell.
_FORMULA = re.compile(r"(^|[;,|])(?=[=+\-@＝＋－＠])")
_MARKDOWN = re.compile(r"([\\`*_\[\]~|])")


def spreadsheet_text(text: str) -> str:
    """Text with an apostrophe where a spreadsheet would begin a formula. Numbers are not text: −1 stays a number."""
    return _FORMULA.sub(r"\1'", clean(text, _LONGEST))


def markdown_cell(text: str) -> str:
    """The same for a cell of a Markdown table, which is pasted into spreadsheets."""
    return markdown_text(spreadsheet_text(text))


def markdown_text(text: str) -> str:
    """Text with all that Markdown and HTML act on escaped."""
    plain = clean(text, _LONGEST).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", plain)
