"""The map of the code names what is there."""

from __future__ import annotations

import re
import tokenize

from tests.cli.program import ROOT

PACKAGE = ROOT / "gpubalance"
MAP = (PACKAGE / "README.md").read_text(encoding="utf-8")


def missing(text: str) -> list[str]:
    """The files and folders that a map names and that are neither in the package's folder nor,
    where a line names a folder, in that one.
    """
    found = []
    for line in text.splitlines():
        named = re.findall(r"`([a-z_/]+(?:\.py|\.toml|/))`", line)
        folders = [PACKAGE, *(PACKAGE / name for name in named if name.endswith("/"))]
        for name in named:
            is_there = any((folder / name).exists() for folder in folders)
            found += [] if is_there else [name]
    return found


def test_each_file_that_it_names_is_there() -> None:
    assert len(re.findall(r"`[a-z_/]+\.py`", MAP)) > 30
    assert missing(MAP) == []


def test_each_room_is_on_it() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    table = MAP.partition("## Words")[0]
    rows = re.findall(r"(?m)^\| ([a-z, ]+) \|", table)
    assert rooms <= set(re.findall(r"[a-z]+", " ".join(rows)))


# A user's script, and a file of TensorFlow's
_OF_OTHERS = {"file.py", "train.py", "cross_device_utils.py"}


def test_each_file_that_a_docstring_or_comment_names_is_there() -> None:
    folders = [PACKAGE, ROOT / "tests", ROOT / "scripts"]
    there = {path.name for one in folders for path in one.glob("**/*.py")} | _OF_OTHERS
    gone = set()
    for path in PACKAGE.glob("**/*.py"):
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                is_text = token.string.startswith(("#", '"""'))
                for name in re.findall(r"(\w+\.py)\b", token.string if is_text else ""):
                    if name not in there:
                        gone.add(f"{path.relative_to(ROOT)}: {name}")
    assert gone == set()
