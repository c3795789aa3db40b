"""What the parity check has found of models, so that a command checks each only once."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.results.combine_rules import CombineRules
from gpubalance.settings.settings import Settings


class KeptRules:
    """Hands what one worker has found to the next ones, and keeps it in the command's journal.

    Of workers that begin at the same time one checks the model, and the others wait for it. What
    could not be tried, as for want of memory, is tried again by the next worker.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rules = journal.load_all(CombineRules)
        self._checking = defaultdict[str, threading.Lock](threading.Lock)

    def checking(self, settings: Settings) -> AbstractContextManager[Any]:
        """Within it no other worker checks the model in these settings.

        A model without a user's code is not checked.
        """
        return (
            self._checking[_key(settings)] if settings.model_is_code else nullcontext()
        )

    def of(self, settings: Settings) -> CombineRules | None:
        """That of the model in these settings, if it was checked."""
        return self._rules.get(_key(settings))

    def note(self, settings: Settings, combine_rules: CombineRules) -> None:
        """Takes what a worker has found, and keeps what is new."""
        key = _key(settings)
        if key not in self._rules and (combine_rules.step or combine_rules.refused):
            self._rules[key] = combine_rules
            self._journal.add(key, combine_rules, helps=False)


def _key(settings: Settings) -> str:
    """What the check depends on: not how gradients are summed, nor XLA."""
    return content_key(settings.model, settings.data, settings.precision)
