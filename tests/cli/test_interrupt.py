"""An interrupt before anything is measured."""

from __future__ import annotations

import signal

import pytest

from tests.cli.program import heed_signals
from tests.support.cases import cases
from tests.support.python import python

# It is sent when that module is loaded.
CODE = """
import runpy, signal, sys
signal.signal(signal.SIGINT, {before})
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.{number})
sys.meta_path.insert(0, Interrupts())
sys.argv = ["gpubalance", "devices", "--simulate", "1"]
runpy.run_module("gpubalance", run_name="__main__")
"""


def interrupted(
    module: str, number: str, before: str = "signal.default_int_handler"
) -> tuple[int, str]:
    """(exit code, stderr)."""
    code = CODE.format(module=module, number=number, before=before)
    done = python("-c", code, preexec_fn=heed_signals)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("before", "code"),
    [("signal.default_int_handler", -int(signal.SIGINT)), ("signal.SIG_IGN", 0)],
)
def test_an_interrupt_while_loading_is_no_traceback(before: str, code: int) -> None:
    assert interrupted("gpubalance.cli.app", "SIGINT", before) == (code, "")


@cases("number, code", ("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129))
def test_an_interrupt_before_the_stage_has_its_exit_code(
    number: str, code: int
) -> None:
    assert interrupted("gpubalance.devices.machine", number) == (code, "")
