"""A plugin of pytest: runs quick tests for many mutants, the nearest and fastest tests first.

The tests are collected once. For each mutant a fork of the process takes its code over into the
modules that are loaded, and runs tests until one fails: that takes a moment, and a process of its
own for each mutant four seconds. What a module does when it is imported is missed here: see
`mutants.py`, which tries a mutant of that once more if it survives.

It reads and writes a file of JSON: `mutants`, each with its `path`, its `source`, or null if it is
on the disk, and `near`, the files of tests by how near they are; and `costs_s`, by file of tests
and by test, what those take that pass and are quick. It adds those of other files, and
`found`, the first test that failed for each mutant.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

_STATE = Path(os.environ["MUTANT_STATE"])
# Processor time of all tests of a mutant, and the most of one
_BUDGET_S = 20.0
_QUICK_S = 5.0
_WAITING = 0.1  # how much the time counts in which nothing works
_TIMES_LONGER = 10  # than without a mutant: it does not end
_HANGS_AFTER_S = 120.0
_MEMORY_BYTES = 12 << 30  # which TensorFlow reserves, and a mutant may ask for


class TooSlow(BaseException):
    """A test that is not quick, or takes far longer than without the mutant."""


def _end(_: int, __: FrameType | None) -> None:
    raise TooSlow


def pytest_runtestloop(session: pytest.Session) -> bool:
    """In place of one run of all tests."""
    # A failure is found, not explained.
    usual = settings.get_profile("here")
    found_only = settings(usual, phases=(Phase.explicit, Phase.generate))
    settings.register_profile("mutants", found_only)
    settings.load_profile("mutants")
    state = json.loads(_STATE.read_text())
    state["found"] = []
    by_file: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    for mutant in state["mutants"]:
        state["found"].append(_found(mutant, by_file, state["costs_s"]))
        _STATE.write_text(json.dumps(state))
    return True


def _found(
    mutant: Mapping[str, Any],
    by_file: Mapping[str, Sequence[pytest.Item]],
    costs_s: dict[str, dict[str, float]],
) -> str | None:
    """The first test that fails with a mutant: of the nearest files, then of the next ones."""
    left_s = _BUDGET_S
    for distance in sorted(set(mutant["near"].values())):
        order = []
        for path, items in by_file.items():
            if mutant["near"].get(path) != distance:
                continue
            if path not in costs_s:
                learned = _in_fork(functools.partial(_costs_s, items))
                costs_s[path] = learned if isinstance(learned, dict) else {}
            for place, item in enumerate(items):
                if item.nodeid in costs_s[path]:
                    order.append((costs_s[path][item.nodeid], path, place))
        tests = []
        for cost_s, path, place in sorted(order):
            left_s -= cost_s
            if left_s > 0:
                tests.append((by_file[path][place], cost_s))
        failed = None
        if tests:
            failed = _in_fork(functools.partial(_first_failed, tests, mutant))
        if failed is not None:
            return str(failed)
        if left_s <= 0:
            break
    return None


def _in_fork(work: Callable[[], Any]) -> Any:
    """What some work returns in a fork of this process; how that ended, if it returned nothing."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  (it is reported)
            result = f"{type(error).__name__}: {error}"
        with open(writes, "w", encoding="utf-8") as file:  # noqa: PTH123  (a descriptor)
            json.dump(result, file)
        os._exit(0)
    os.close(writes)
    with open(reads, encoding="utf-8") as file:  # noqa: PTH123
        text = file.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return f"the process ended with {status}"
    return json.loads(text)


def _costs_s(items: Sequence[pytest.Item]) -> dict[str, float]:
    costs_s = {}
    _load_tensorflow(items)
    for number, item in enumerate(items):
        began_s = _processor_s()
        began_at_s = time.monotonic()
        after = items[number + 1] if number + 1 < len(items) else None
        if _outcome(item, after, _QUICK_S) == "passed":
            waited_s = time.monotonic() - began_at_s
            took_s = _processor_s() - began_s
            costs_s[item.nodeid] = max(took_s, _WAITING * waited_s)
    return costs_s


def _processor_s() -> float:
    """The processor time of this process, and of those that it started and has waited for."""
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + others.ru_utime + others.ru_stime


def _first_failed(
    tests: Sequence[tuple[pytest.Item, float]], mutant: Mapping[str, Any]
) -> str | None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    try:
        if mutant["source"] is not None:
            _take_over(mutant["path"], mutant["source"])
    except Exception as error:  # noqa: BLE001  (any may be the mutant's)
        return f"import: {error}"
    _load_tensorflow([item for item, _ in tests])
    for number, (item, cost_s) in enumerate(tests):
        after = tests[number + 1][0] if number + 1 < len(tests) else None
        if _outcome(item, after, 1.0 + _TIMES_LONGER * cost_s) == "failed":
            with contextlib.suppress(BaseException):  # or its processes would live on
                item.session._setupstate.teardown_exact(None)
            return item.nodeid
    return None


def _load_tensorflow(items: Sequence[Any]) -> None:
    """Loads it before the first test's time begins, if any of them needs it."""
    if any("tensorflow" in item.fixturenames for item in items):
        importlib.import_module("keras")


def _outcome(item: pytest.Item, after: pytest.Item | None, within_s: float) -> str:
    """Whether a test passed, failed or was skipped. Too slow a one failed."""
    signal.signal(signal.SIGPROF, _end)
    signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_PROF, within_s)
    signal.setitimer(signal.ITIMER_REAL, _HANGS_AFTER_S)
    # Python handles no signal while TensorFlow waits for ever: then the process ends.
    faulthandler.dump_traceback_later(2 * _HANGS_AFTER_S, exit=True)
    try:
        reports = runtestprotocol(item, log=False, nextitem=after)
    except BaseException:  # noqa: BLE001  (the test's, or that it takes too long)
        return "failed"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    outcomes = [report.outcome for report in reports]
    for outcome in ("failed", "skipped"):
        if outcome in outcomes:
            return outcome
    return "passed"


def _take_over(path: str, source: str) -> None:
    """Gives a module, loaded or not yet, the mutant's code."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    code = compile(source, path, "exec")
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _MutantFinder(name, code))
        return
    new = ModuleType(name)
    kept = ("__file__", "__package__", "__path__", "__spec__")
    vars(new).update({key: value for key, value in vars(module).items() if key in kept})
    sys.modules[name] = new  # dataclasses look there
    exec(code, vars(new))  # noqa: S102
    sys.modules[name] = module
    _swap(vars(module), vars(new), functools.partial(_rebind, module))


class _MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads a module with the mutant's code when it is imported."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name = name
        self._code = code

    def find_spec(self, name: str, *_: Any) -> Any:
        """The module's own spec, with this loader."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        spec.loader = self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Runs the mutant's code."""
        exec(self._code, vars(module))  # noqa: S102


def _swap(
    old: Mapping[str, Any], new: Mapping[str, Any], rebind: Callable[[str, Any], None]
) -> None:
    """Has old functions and classes do what the new ones of the same name do."""
    for name in list(old.keys() & new.keys()):
        before = old[name]
        after = new[name]
        pairs = list(zip(_functions(before), _functions(after), strict=False))
        for function, other in pairs:
            with contextlib.suppress(ValueError):  # it closes over other variables
                function.__code__ = other.__code__
                function.__defaults__ = other.__defaults__
                function.__kwdefaults__ = other.__kwdefaults__
        if isinstance(before, type) and before.__module__ == after.__module__:
            if before is not after:
                _swap(vars(before), vars(after), functools.partial(_set, before))
        elif not pairs and not name.startswith("__"):
            rebind(name, after)


def _functions(value: Any) -> Iterable[FunctionType]:
    """The functions that something in a module or a class calls."""
    if isinstance(value, property):
        parts = [value.fget, value.fset]
    else:
        parts = [value]
        for name in ("__func__", "__wrapped__", "func"):
            parts.append(getattr(value, name, None))
    return [part for part in parts if isinstance(part, FunctionType)]


def _set(kind: type, name: str, value: Any) -> None:
    if isinstance(value, int | float | tuple):
        setattr(kind, name, value)


def _rebind(module: ModuleType, name: str, value: Any) -> None:
    """Gives a constant its new value, also where it was imported from the module."""
    before = getattr(module, name)
    is_constant = isinstance(value, int | float | tuple | dict | set | frozenset)
    if not is_constant or isinstance(value, bool):
        return
    for user in list(sys.modules.values()):
        is_ours = getattr(user, "__name__", "").startswith(("gpubalance", "tests"))
        if is_ours and vars(user).get(name) is before:
            setattr(user, name, value)
