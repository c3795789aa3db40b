"""An interrupt while the program is still being loaded."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cli.program import ROOT

# The first module of the command line's own that is loaded sends it.
CODE = """
import runpy, signal, sys
signal.signal(signal.SIGINT, {before})
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "gpubalance.cli.app":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["gpubalance", "--help"]
runpy.run_module("gpubalance", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("before", "code"), [("signal.default_int_handler", -int(signal.SIGINT)), ("signal.SIG_IGN", 0)]
)
def test_an_interrupt_while_it_is_loaded_is_no_traceback(before: str, code: int) -> None:
    command = [sys.executable, "-c", CODE.format(before=before)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
