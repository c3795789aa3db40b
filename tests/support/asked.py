"""Asks the worker of a party."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpubalance.workers.party import Party
from gpubalance.workers.worker import Worker

T = TypeVar("T")


def asked(party: Party, work: Callable[[Worker], T]) -> T:
    """What `work` returns with the worker of the party's first group. Raises its failure."""
    with party.worker() as worker:
        return work(worker)
