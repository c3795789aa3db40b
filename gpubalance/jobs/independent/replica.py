"""A device that trains its own model."""

from __future__ import annotations

from dataclasses import dataclass

from gpubalance.errors import GpubalanceError
from gpubalance.jobs.measure.subject import Subject
from gpubalance.settings.device import Device
from gpubalance.settings.requests import IndependentRequest
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Ready


@dataclass
class OwnReplica:
    """A device and its model, which is measured `alone`, and `at_once` with those of the others.

    `number` is its place in the request, `facts` what its worker reported of the model, `error` why
    it dropped out.
    """

    number: int
    device: Device
    model: str
    batch: int
    alone: Subject
    at_once: Subject
    facts: Ready | None = None
    error: GpubalanceError | None = None


def replicas_of(request: IndependentRequest) -> list[OwnReplica]:
    """Those of a request, in its order."""
    replicas = []
    has_data = request.settings.data is not None
    for number, device in enumerate(request.devices):
        batch = request.batches[number]
        own = Shares((batch,)), (device,)
        alone = Subject(*own, "alone", is_baseline=True, pipeline=has_data, stamped=False)
        at_once = Subject(*own, "at once", pipeline=has_data, stamped=False)
        model = request.models[number]
        replicas.append(OwnReplica(number, device, model, batch, alone, at_once))
    return replicas
