"""The examples in README and guide, run for real and written by this module.

`python -m tests.guide.examples [DOCUMENT …]` runs and writes them. It takes some minutes for each
document, on a machine that does nothing else. An example that leaves something out (`…`) is not
written, as only a person can choose what to leave out.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.cli.program import ROOT, gpubalance
from tests.guide.documents import DOCUMENTS, read

# A console block, and the example below it with what its last command prints.
_BLOCK = re.compile(
    r"(?s)```console\n(?P<commands>.*?)```(?:(?:(?!```).)*?<!-- example "
    r"-->\n```text\n(?P<shown>.*?)\n```)?"
)
# Commands that install or change something, serve until they are ended, or run these tests.
_NOT_RUN = ("pip", "tensorboard", "scripts/test", "gpubalance --install")


class Example(NamedTuple):
    """How the program is started, the rest of the line, and what the document says it prints.

    The document may say nothing of what it prints.
    """

    program: str
    command: tuple[str, ...]
    shown: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that scripts/gpubalance sets."""
        return {"GPUBALANCE_STARTED_AS": self.program}


def examples(name: str) -> list[Example]:
    """The examples of a document, in order."""
    found = []
    for block in _BLOCK.finditer(read(name)):
        lines = [line.removeprefix("$ ") for line in block["commands"].splitlines()]
        commands = [shlex.split(one) for one in lines if not one.startswith(_NOT_RUN)]
        shown = [""] * (len(commands) - 1) + [block["shown"] or ""]
        if commands:
            for command, text in zip(commands, shown, strict=True):
                found.append(Example(command[0], tuple(command[1:]), text))
    return found


def main(names: list[str]) -> None:
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "configs").symlink_to(ROOT / "configs")
            made = examples(name)
            last = max(place for place, example in enumerate(made) if example.shown)
            for example in made[: last + 1]:
                if "…" in example.shown:
                    continue
                own = {"XDG_STATE_HOME": folder, "CUDA_VISIBLE_DEVICES": "-1"}
                how: Any = {
                    "cwd": Path(folder),
                    "environment": own | example.environment,
                }
                done = gpubalance(*example.command, **how)
                said = done.stderr if done.returncode else ""
                print(name, *example.command, f"→ {done.returncode}", said)
                if example.shown:
                    text = read(name).replace(example.shown, done.stdout.rstrip("\n"))
                    DOCUMENTS[name].write_text(text, encoding="utf-8")


if __name__ == "__main__":
    shown = [name for name in DOCUMENTS if any(one.shown for one in examples(name))]
    main(sys.argv[1:] or shown)
