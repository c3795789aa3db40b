"""A device that trains its own model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpubalance.errors import GpubalanceError
from gpubalance.jobs.measure.window import Workload
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.requests import IndependentRequest


@dataclass
class OwnReplica:
    """A device and its model, which is measured `alone`, and `at_once` with those of the others.

    `number` is its place in the request; `error` is why it dropped out.
    """

    number: int
    device: Device
    model: str
    batch: int
    alone: Workload
    at_once: Workload
    error: GpubalanceError | None = None


def replicas_of(request: IndependentRequest) -> list[OwnReplica]:
    """Those of a request, in its order."""
    replicas = []
    for number, device in enumerate(request.devices):
        batch = request.batches[number]
        at_once = Workload(
            BatchSplit((batch,)),
            (device,),
            name="at once",
            from_input_pipeline=request.settings.data is not None,
            group=number,
            wants_stamps=False,
        )
        alone = replace(at_once, name="alone", is_baseline=True)
        model = request.models[number]
        replicas.append(OwnReplica(number, device, model, batch, alone, at_once))
    return replicas
