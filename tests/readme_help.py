"""`python -m tests.readme_help`: writes each command's help into the README, where a test holds it."""

from __future__ import annotations

import re

from tests.cli.program import ROOT
from tests.test_readme import HELP, help_text


def main() -> None:
    """Everything after the mark is written anew."""
    path = ROOT / "README.md"
    blocks = "\n".join(f"```text\n{help_text(command)}\n```\n" for command in HELP)
    path.write_text(re.sub(r"(?s)<!-- help -->\n.*", lambda _: f"<!-- help -->\n{blocks}", path.read_text()))


if __name__ == "__main__":
    main()
