"""`python -m tests.readme_help`: writes each command's help, and the table of troubles, into the README.

Tests hold them there.
"""

from __future__ import annotations

import re

from gpubalance.remedies import TABLE
from tests.cli.program import ROOT
from tests.test_readme import HELP, help_text


def troubles() -> str:
    """The table of known errors, a row each."""
    rows = [f"| {_cell(row.message)} | {_cell(row.cause)} | {_cell(row.remedy)} |" for row in TABLE]
    return "\n".join(["| message | cause | what to do |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    """A row's text, which a `|` would end."""
    return text.replace("|", "\\|")


def main() -> None:
    """The table between its marks, and everything after the last mark, are written anew."""
    path = ROOT / "README.md"
    blocks = "\n".join(f"```text\n{help_text(command)}\n```\n" for command in HELP)
    text = re.sub(r"(?s)<!-- help -->\n.*", lambda _: f"<!-- help -->\n{blocks}", path.read_text())
    marked = r"(?s)<!-- troubles -->\n.*?<!-- end of troubles -->"
    path.write_text(re.sub(marked, lambda _: f"<!-- troubles -->\n{troubles()}\n\n<!-- end of troubles -->", text))


if __name__ == "__main__":
    main()
