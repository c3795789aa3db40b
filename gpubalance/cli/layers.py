"""`gpubalance layers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from gpubalance.cli.options import Devices, RunControl, Unwatched, request_fields
from gpubalance.cli.parameters import Without
from gpubalance.errors import UsageError
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.measuring import Proof
from gpubalance.settings.planning import Cutting
from gpubalance.settings.requests import LayersRequest
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.results.layers import Layers


def layers(
    gpus: Devices,
    settings: Annotated[Settings, Without("xla", "input", "data", "all_reduce")],
    cutting: Cutting,
    measuring: Annotated[Proof, Without("baseline")],
    control: RunControl,
    reporting: Unwatched,
) -> None:
    """The devices form a pipeline of micro-batches; a run then measures the best cut.

    Example: gpubalance layers --gpus 0 1 -o layers.json
    """
    from gpubalance.cli.job import dry_run, job_of
    from gpubalance.cli.next_command import layers_uses
    from gpubalance.cli.output import summed_up
    from gpubalance.jobs.layers.layers import layers as measure
    from gpubalance.render.layers import layers_summary

    machine = gpus.machine()
    fields = request_fields(machine, gpus, settings, minimum=2)
    request = LayersRequest(**fields, measuring=measuring, **dict(cutting))
    _check_one_host(request.devices)

    def text(result: Layers) -> str:
        following = layers_uses(reporting.output, gpus.simulate, request.settings)
        return summed_up(result, layers_summary(result), *following)

    if control.dry_run:
        dry_run(machine, request, control, reporting)
        return
    with job_of(machine, request, control, reporting, text) as job:
        job.result = measure(job.request, job.watch, job.journal)


def _check_one_host(devices: tuple[Device, ...]) -> None:
    """Raises UsageError for devices of several hosts."""
    if len(hosts_of(devices)) > 1:
        raise UsageError(
            "a model can be cut only over devices of one host, because its stages send "
            "each other too much for a network",
            remedy="name the devices of one host: --gpus",
        )
