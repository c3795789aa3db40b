"""Many command lines that are wrong in one way each need no process each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.in_process import Program, apart, program


@pytest.fixture
def in_process(tmp_path: Path) -> Iterator[Program]:
    """The program's own main(), in this process: what it is given must be refused before any worker is needed."""
    with apart(tmp_path):
        yield program
