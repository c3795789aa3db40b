"""Without a compiler for the fake GPUs' plugin, the tests with them are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.python import python

pytestmark = pytest.mark.full  # as the tests with fake GPUs are


def test_without_a_compiler_the_tests_are_skipped_with_one_line(tmp_path: Path) -> None:
    asked = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/fake_gpu"]
    done = python(*asked, env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skipped) == 1
    assert skipped[0].endswith("no g++ to compile the fake GPUs with")
