"""`gpubalance devices`."""

from __future__ import annotations

from typing import Annotated

import typer

from gpubalance.cli.options import Devices, Printed
from gpubalance.cli.parameters import Without
from gpubalance.errors import EnvironmentFault


def devices(
    reporting: Annotated[Printed, Without("output", "overwrite")],
    selected: Annotated[Devices, Without("gpus")],
) -> None:
    """Example: gpubalance devices"""
    from gpubalance.cli.output import Output, width
    from gpubalance.cli.progress import Progress
    from gpubalance.devices.hosts import connect_hosts
    from gpubalance.jobs.devices import Listing, Listings, list_devices, list_devices_of
    from gpubalance.remedies import known_error
    from gpubalance.render.devices import gpus_text, hosts_text, simulated_text

    def text(result: Listing | Listings) -> str:
        """The devices of this host, of all hosts, or of a profile, as a table."""
        if isinstance(result, Listings):
            readings = [
                (str(host.host), host.nvidia) for host in result.hosts if host.nvidia
            ]
            return hosts_text(readings)
        if result.nvidia:
            return gpus_text(result.nvidia)
        return simulated_text(result.simulated or (), width())

    output = Output(reporting, text, shows_progress=False)
    hosts = connect_hosts(selected.hosts, selected.via)
    if hosts and selected.simulate is None:
        listings, errors = list_devices_of(hosts)
        output.give(listings)
        if errors:
            raise errors[0]
        return
    listing = list_devices(
        selected.simulate, hosts, Progress(quiet=reporting.quiet), selected.time_scale
    )
    gpus = listing.nvidia
    if gpus is not None and gpus.problem and not reporting.as_json:
        cause = known_error(gpus.code).cause if gpus.code else ""
        raise EnvironmentFault(gpus.problem, cause=cause, remedy=gpus_text(gpus))
    output.give(listing)
    if gpus is not None and gpus.problem:
        raise typer.Exit(EnvironmentFault.exit_code)
