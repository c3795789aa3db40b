"""`check`: builds a model, takes a batch of its data, and tries its step in parts.

Nothing is measured.
"""

from __future__ import annotations

from gpubalance.jobs.endings import attach_partial, raise_if_refused
from gpubalance.jobs.events import Watch
from gpubalance.jobs.measure.party import party_for
from gpubalance.results.check import ModelCheck
from gpubalance.results.common import now
from gpubalance.results.warnings import warning
from gpubalance.settings.requests import RunRequest
from gpubalance.system.deadlines import TimeLimit


def check(request: RunRequest, watch: Watch) -> ModelCheck:
    """What a worker finds when it builds the request's model on its device.

    Raises BadInput for a model or data that can't be measured, and with the result for a model that
    a split can't train.
    """
    with party_for(
        request, watch, TimeLimit(request.measuring.time_limit_s), purpose="check"
    ) as party:
        party.start()
        facts = party.facts
    found = ModelCheck(
        created=now(),
        settings=request.settings,
        model=facts.model,
        own_batch=facts.own_batch,
        samples=facts.samples,
        refused=facts.verdict.refused,
        warnings=tuple(
            warning("not-exact", text=text) for text in facts.verdict.warned
        ),
    )
    with attach_partial(lambda: found):
        raise_if_refused(facts)
    return found
