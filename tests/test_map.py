"""The map of the code names what is there."""

from __future__ import annotations

import re

from tests.cli.program import ROOT

PACKAGE = ROOT / "gpubalance"
MAP = (PACKAGE / "README.md").read_text(encoding="utf-8")


def test_each_file_that_it_names_is_there() -> None:
    named = re.findall(r"`([a-z_/]+(?:\.py|\.toml|/))`", MAP)
    assert len(named) > 30
    for name in named:
        assert (PACKAGE / name).exists() or any(PACKAGE.rglob(name)), name


def test_each_room_is_on_it() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    table = MAP.partition("## The way of `--batches")[0]
    on_it = set(
        re.findall(r"[a-z]+", " ".join(re.findall(r"(?m)^\| ([a-z, ]+) \|", table)))
    )
    assert rooms <= on_it
