"""The example that the project ships trains."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.cli.program import ROOT


@pytest.mark.full
def test_the_example_trains_and_tells_where_the_time_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example runs in this process, whose devices are set up.

    tests/cli/test_from_python.py runs a script in a process of its own.
    """
    path = str(ROOT / "scripts" / "example.py")
    monkeypatch.setattr(sys, "argv", [path])
    runpy.run_path(path, run_name="__main__")
    out = capsys.readouterr().out
    assert "Epoch 3/3" in out
    assert out.splitlines()[-1].startswith("GPU:1 Quick 2: compute ")
