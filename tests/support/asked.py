"""Asks the worker of a worker group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup

T = TypeVar("T")


def asked(worker_group: WorkerGroup, work: Callable[[Worker], T]) -> T:
    """What `work` returns with the worker of the worker group's first group. Raises its failure."""
    with worker_group.worker() as worker:
        return work(worker)
