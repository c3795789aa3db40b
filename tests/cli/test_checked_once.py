"""A model is checked in parts once a command, however many workers build it.

With --resume it is never checked again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpubalance.jobs.journal import Journal
from gpubalance.jobs.saved import KeptRules
from gpubalance.results.combine_rules import CombineRules
from gpubalance.settings.settings import Settings
from tests.cli.program import QUICK_PAIR, gpubalance
from tests.support.cases import cases

# It notes the processes that check it.
_MODEL = """
import os
from pathlib import Path

import keras

from gpubalance.engine.replacing import acting_here

class Noting(keras.layers.Dense):
    def call(self, inputs, training=None):
        # What is drawn at random is fixed in the check only
        if any(name == "random_uniform" for _, name, _ in acting_here()):
            with (Path(__file__).parent / "checked").open("a") as file:
                file.write(f"{os.getpid()}\\n")
        return super().call(inputs)

def net():
    return keras.Sequential([keras.Input((8,)), Noting(4)])
"""


_FEW = (
    "--max-global-batch 64 --duration 0.2 --windows 1 --rounds 1 --round-duration 0.2"
)


@pytest.mark.full
@pytest.mark.usefixtures("forked")
@cases(
    "command",
    f"balance {_FEW}",
    "probe --max-batch 8 --duration 0.2 --parallel",
    ids=str,
)
def test_the_workers_of_a_command_check_the_model_once(
    command: str, tmp_path: Path
) -> None:
    """Whether they begin one after another or at once."""
    file = tmp_path / "model.py"
    file.write_text(_MODEL)
    gpubalance(f"{command} --simulate {QUICK_PAIR} --model {file}:net", code=0)
    assert len(set((tmp_path / "checked").read_text().split())) == 1


def test_what_was_found_is_left_for_resume() -> None:
    """What was found is left for resume and what could not be tried is not."""
    settings, other = (Settings(model=f"model.py:{name}") for name in ("net", "other"))
    counts: Any = {"variables": {3: 1}, "logs": {"loss": 1}, "step": {"MatMul": 4}}
    found = CombineRules(exponents=(0, 1), minimum=2, **counts)
    with Journal("a", "a test", resume=False) as journal:
        journal.stays = True
        kept_rules = KeptRules(journal)
        kept_rules.note(settings, found)
        untried = CombineRules(warned=("it can't be tried",), is_known=False)
        kept_rules.note(other, untried)
        assert kept_rules.of(settings) == found
    again = KeptRules(Journal("a", "a test", resume=True))
    assert again.of(settings) == found
    assert again.of(other) is None
