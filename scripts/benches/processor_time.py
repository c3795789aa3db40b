"""What each test takes: `scripts/test --durations` writes it for `scripts/bench tests`.

Processor time counts, as wall time on a machine with other work says little. A test's is that of its
process and of the children that ended in it, with theirs. What a fixture of a module or of the
session takes is the test's that comes first.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import forks

FULL = "full"  # the mark of tests that only `scripts/test all` runs
_OWN = "own processor time"
_OF_CHILDREN = "processor time of children"
_ALL = "all processor time"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--test-times", metavar="FILE", help="write there what each test takes"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("test_times")
    if path:
        config.pluginmanager.register(TimesPlugin(config, config.rootpath / path))


@dataclass
class Taken:
    """What a test took, with its set-up and teardown."""

    processor_s: float
    children_s: float  # the part of it that was in children
    wall_s: float
    is_full: bool


@dataclass
class SuiteTimes:
    """What a run of tests took. `processor_s` has the imports and the collection as well."""

    processor_s: float
    wall_s: float
    tests: dict[str, Taken]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def read_times(path: Path) -> SuiteTimes:
    read = json.loads(path.read_text(encoding="utf-8"))
    tests = {name: Taken(**times) for name, times in read["tests"].items()}
    return SuiteTimes(read["processor_s"], read["wall_s"], tests)


class TimesPlugin:
    """Measures in each process that runs tests, and writes in the one that reports them."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config, self._path = config, path
        self._began_s = time.monotonic()
        self._last = _used()
        self._tests: dict[str, Taken] = {}
        self._workers_s = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._last = _used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds to the report of a set-up, a call or a teardown what it took."""
        report = yield
        used = _used()
        report.user_properties += [
            (_OWN, used.own_s - self._last.own_s),
            (_OF_CHILDREN, used.children_s - self._last.children_s),
            (FULL, item.get_closest_marker(FULL) is not None),
        ]
        self._last = used
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        taken = self._tests.setdefault(report.nodeid, Taken(0.0, 0.0, 0.0, False))
        for name, value in report.user_properties:
            if name == FULL:
                taken.is_full = bool(value)
            if name in (_OWN, _OF_CHILDREN):
                taken.processor_s += float(str(value))
            if name == _OF_CHILDREN:
                taken.children_s += float(str(value))
        taken.wall_s += report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has ended."""
        self._workers_s += getattr(node, "workeroutput", {}).get(_ALL, 0.0)

    def pytest_sessionfinish(self) -> None:
        used = _used()
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_ALL] = used.own_s + used.children_s
            return
        # Whether a worker is among the ended children yet is not certain: each has told its own.
        others_s = self._workers_s or used.children_s
        wall_s = time.monotonic() - self._began_s
        SuiteTimes(used.own_s + others_s, wall_s, self._tests).write(self._path)


class _Used(NamedTuple):
    own_s: float
    children_s: float


def _used() -> _Used:
    """Processor time of this process, and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own_s, children_s = (usage.ru_utime + usage.ru_stime for usage in usages)
    return _Used(own_s, children_s + forks.used_s())
