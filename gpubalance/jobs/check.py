"""`check`: builds a model, takes a batch of its data, and tries its step in parts.

Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.errors import Interrupted
from gpubalance.jobs.endings import attach_partial, raise_if_refused
from gpubalance.jobs.events import Watch
from gpubalance.jobs.measure.measurer import group_for
from gpubalance.results.checkup import ModelCheck
from gpubalance.results.common import Warning_, now
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import proportional_split
from gpubalance.settings.device import Device
from gpubalance.settings.requests import RunRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Ready


def check(request: RunRequest, watch: Watch, devices: Sequence[Device]) -> ModelCheck:
    """What a worker finds when it builds the request's model on its device.

    `devices` are those that would share a batch, as far as they are known.

    Raises BadInput for a model or data that can't be measured, and with the result for a model that
    a split can't train, and Interrupted.
    """
    limit = TimeLimit(request.measuring.time_limit_s)
    try:
        with group_for(request, watch, limit, purpose="check") as worker_group:
            worker_group.start()
            facts = worker_group.facts
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, remedy="nothing was checked yet") from None
    found = ModelCheck(
        created=now(),
        settings=request.settings,
        model=facts.model,
        own_batch=facts.own_batch,
        samples=facts.samples,
        refused=facts.combine_rules.refused,
        local_layers=facts.local_layers,
        compiled_with=facts.compiled_with,
        warnings=tuple(_warnings(facts, devices)),
    )
    with attach_partial(lambda: found):
        raise_if_refused(facts)
    return found


def _warnings(facts: Ready, devices: Sequence[Device]) -> Iterator[Warning_]:
    if facts.compiled_with is not None:
        yield warning("not-compiled", compiled_with=facts.compiled_with)
    for text in facts.combine_rules.warned:
        yield warning("not-exact", text=text)
    local = facts.local_layers
    if local.batch_normalizations:
        yield warning(
            "not-exact/batch-normalisation",
            layers=_counted(local.batch_normalizations, "BatchNormalization", "is"),
            shares=_shares_text(facts.own_batch, devices),
        )
    if local.random:
        counted = [f"{count} {kind}" for kind, count in local.random]
        yield warning("random-layers", layers=", ".join(counted))


def _counted(count: int, kind: str, verb: str) -> str:
    """`1 BatchNormalization layer is`, `52 BatchNormalization layers are`."""
    if count == 1:
        return f"1 {kind} layer {verb}"
    return f"{count} {kind} layers are"


def _shares_text(batch: int | None, devices: Sequence[Device]) -> str:
    """How many samples of the user's own batch each device would have; empty if it is unknown."""
    if batch is None:
        return ""
    profiles = [device.profile for device in devices if device.profile]
    if len(profiles) < 2:
        equal = max(2, len(devices))
        return f", {batch // equal} samples on each of {equal} equal devices"
    rates = [1 / profile.compute_s(batch) for profile in profiles]
    shares = proportional_split(batch, [round(rate * 1000) for rate in rates])
    return f", about {' and '.join(map(str, shares))} samples"
