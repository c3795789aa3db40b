"""Ends a command before it measures a split of a model that no split can train."""

from __future__ import annotations

from gpubalance.errors import BadInput
from gpubalance.workers.messages import Ready


def refuse(facts: Ready) -> None:
    """Raises BadInput with what `Split.fit` would say of the model, if it would refuse it."""
    if facts.refused is not None:
        raise BadInput(facts.refused.message, remedy=facts.refused.remedy)
