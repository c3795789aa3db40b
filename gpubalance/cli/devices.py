"""`gpubalance devices`."""

from __future__ import annotations

from typing import Annotated

import typer

from gpubalance.cli.options import Devices, Reporting
from gpubalance.cli.parameters import Without
from gpubalance.errors import EnvironmentFault


def devices(
    output: Annotated[Reporting, Without("output", "overwrite", "quiet", "tensorboard", "trace")],
    asked: Annotated[Devices, Without("gpus")],
) -> None:
    """Example: gpubalance devices"""
    from gpubalance.cli.output import Output
    from gpubalance.cli.progress import Progress
    from gpubalance.devices.hosts import connect_hosts
    from gpubalance.jobs.devices import list_devices, list_devices_of
    from gpubalance.remedies import known_error
    from gpubalance.render.devices import gpus_text, hosts_text, simulated_text

    out = Output(output, quiet=True)
    named = connect_hosts(asked.hosts, asked.via)
    if named and asked.simulate is None:
        found, errors = list_devices_of(named)
        out.give(found, lambda shown: hosts_text([(one.host, one.nvidia) for one in shown.hosts]))
        if errors:
            raise errors[0]
        return
    listing = list_devices(asked.simulate, named, Progress(quiet=False))
    if listing.nvidia and listing.nvidia.problem and not output.as_json:
        cause = known_error(listing.nvidia.code).cause if listing.nvidia.code else ""
        raise EnvironmentFault(
            listing.nvidia.problem, cause=cause, remedy=gpus_text(listing.nvidia)
        )
    out.give(
        listing,
        lambda shown: gpus_text(shown.nvidia) if shown.nvidia else simulated_text(shown.simulated),
    )
    if listing.nvidia and listing.nvidia.problem:
        raise typer.Exit(EnvironmentFault.exit_code)
