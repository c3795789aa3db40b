"""A model is built in many workers, and checked in one: the others take its verdict."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from gpubalance.results.decomposition import Decomposition
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build
from gpubalance.workers.worker import Worker


class Verdicts(Protocol):
    """What the parity check has found of models."""

    def turn(self, settings: Settings) -> AbstractContextManager[None]:
        """Within it no other worker checks the model in these settings."""

    def of(self, settings: Settings) -> Decomposition | None:
        """That of the model in these settings, if it was checked."""

    def note(self, settings: Settings, verdict: Decomposition) -> None:
        """Takes what a worker has found."""


def build_in(worker: Worker, build: Build, verdicts: Verdicts | None) -> None:
    """Builds the model in a worker, which checks it unless another one does or has done so."""
    if verdicts is None:
        worker.open(build)
        return
    with verdicts.turn(build.settings):
        verdict = verdicts.of(build.settings)
        if verdict is None:
            worker.open(build)
            verdicts.note(build.settings, worker.facts.verdict)
            return
    worker.open(build.model_copy(update={"verdict": verdict}))
