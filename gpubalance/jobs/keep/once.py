"""Resume: what a command made under a key before it was interrupted is not made again.

A job that is resumed simply runs again: its decisions follow from its measurements, which are there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal

R = TypeVar("R", bound=BaseModel)


def ending_now(records: Sequence[Any]) -> list[Any]:
    """Records of some time, each moved to follow the one before, the last to end now: a boot resets the clock."""
    end_s, moved = time.monotonic(), list[Any]()
    for record in reversed(records):
        began_s, ended_s = record.span_s
        moved.insert(0, record.later(end_s - ended_s))
        end_s -= ended_s - began_s
    return moved


class Once:
    """The records of a command, each under a key; without a journal nothing is kept. `again` counts those it had.

    It says where new ones follow those, as a job tells both alike.
    """

    def __init__(self, journal: Journal | None, watch: Watch) -> None:
        self._journal = journal
        self._watch = watch
        self._is_new = False
        self._left: dict[type[BaseModel], dict[str, Any]] = {}
        self.again: Counter[type[BaseModel]] = Counter()
        if journal is not None:
            journal.tell = lambda text: watch(Doing(text))

    def __call__(self, key: str, kind: type[R], make: Callable[[], R]) -> R:
        """The record that was left under the key, else the one that `make` returns, which is kept."""
        found = self.had(key, kind)
        if found is None:
            found = make()
            self.keep(key, found)
        return found

    def had(self, key: str, kind: type[R]) -> R | None:
        """The last record of that kind that was left under the key, or None."""
        if kind not in self._left:
            left: dict[str, Any] = self._journal.left(kind) if self._journal else {}
            if hasattr(kind, "span_s"):
                left = dict(zip(left, ending_now([*left.values()]), strict=True))
            self._left[kind] = left
        found: R | None = self._left[kind].get(key)
        self.again[kind] += found is not None
        return found

    def cannot_help(self) -> None:
        """Makes an error not offer --resume: what was kept would not help."""
        if self._journal is not None:
            self._journal.cannot_help()

    def keep(self, key: str, record: BaseModel) -> None:
        """Keeps a record."""
        if self._journal is not None:
            if not self._is_new and any(self.again.values()):
                self._watch(Doing("what was told so far was measured before the interruption"))
            self._is_new = True
            self._journal.add(key, record)
