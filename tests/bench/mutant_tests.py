"""A plugin of pytest: runs the quick tests that may find a mutant, the nearest and fastest first.

What each of them takes, in processor time, it has learned from a run without a mutant. It reads a
file of JSON: `near` has the files of tests, each by how near it is to the mutant; `costs_s` what
their quick tests take. Without these it learns: it adds `learned`, the tests that pass and are
quick. With them it adds the one that `failed`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings

_STATE = Path(os.environ["MUTANT_STATE"])
# Processor time of all tests of a mutant, and the most of one
_BUDGET_S = 12.0
_QUICK_S = 6.0
_TIMES_LONGER = 10  # than without a mutant: it does not end
_MEMORY_BYTES = 12 << 30  # which TensorFlow reserves, and a mutant may ask for

_state: dict[str, Any] = json.loads(_STATE.read_text())
_costs_s: dict[str, float] | None = _state.get("costs_s")
_learned: dict[str, float] = {}
_began_s: dict[str, float] = {}


class TooSlow(BaseException):
    """A test that is not quick, or takes far longer than without the mutant."""


def _end(_: int, __: FrameType | None) -> None:
    raise TooSlow


def pytest_configure() -> None:
    """Limits what a mutant may take."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _end)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the quick tests in order, up to the budget."""
    # A failure is found, not explained.
    found_only = settings(
        settings.get_profile("here"), phases=(Phase.explicit, Phase.generate)
    )
    settings.register_profile("mutants", found_only)
    settings.load_profile("mutants")
    if _costs_s is None:
        return
    order = []
    for place, item in enumerate(items):
        if item.nodeid in _costs_s:
            distance = _state["near"].get(item.nodeid.partition("::")[0], 9)
            cost_s = _costs_s[item.nodeid]
            order.append(((1 + distance) * cost_s, place, cost_s))
    chosen: list[pytest.Item] = []
    left_s = _BUDGET_S
    for _, place, cost_s in sorted(order):
        left_s -= cost_s
        if left_s > 0:
            chosen.append(items[place])
    items[:] = chosen


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Gives the test so much processor time."""
    _began_s[item.nodeid] = time.process_time()
    within_s = _QUICK_S
    if _costs_s is not None:
        within_s = 5.0 + _TIMES_LONGER * _costs_s[item.nodeid]
    signal.setitimer(signal.ITIMER_PROF, within_s)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Notes what a test took, or that it failed."""
    report = yield
    if report.when == "call":
        signal.setitimer(signal.ITIMER_PROF, 0)
        if report.passed:
            _learned[item.nodeid] = time.process_time() - _began_s[item.nodeid]
    if report.failed:
        _fail(item.nodeid)
        if _costs_s is not None:
            item.session.shouldstop = "found"
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A mutant may show as soon as a module is imported."""
    if report.failed:
        _fail(f"collecting {report.nodeid}")


def _fail(test: str) -> None:
    _state.setdefault("failed", test)


def pytest_unconfigure() -> None:
    """Writes what was found or learned."""
    _STATE.write_text(json.dumps(_state | {"learned": _learned}))
