"""`gpubalance devices`."""

from __future__ import annotations

import typer

from gpubalance.cli import options
from gpubalance.errors import EnvironmentFault


def devices(simulate: options.Simulate = None, json: options.Json = False, verbose: options.Verbose = False) -> None:
    """List the devices, and why one can't be used.

    Example: gpubalance devices
    """
    del verbose  # main() reads it, where errors are shown
    from gpubalance.cli.output import Output
    from gpubalance.cli.progress import Progress
    from gpubalance.remedies import known
    from gpubalance.render.devices import gpus_text, simulated_text
    from gpubalance.stages.devices import list_devices

    listing = list_devices(simulate, Progress(quiet=False))
    text = gpus_text(listing.nvidia) if listing.nvidia else simulated_text(listing.simulated or ())
    if listing.nvidia and listing.nvidia.problem and not json:
        cause = known(listing.nvidia.code).cause if listing.nvidia.code else ""
        raise EnvironmentFault(listing.nvidia.problem, cause=cause, remedy=text)
    Output(json=json, path=None).give(listing, text)
    if listing.nvidia and listing.nvidia.problem:
        raise typer.Exit(EnvironmentFault.exit_code)
