"""`gpubalance devices`."""

from __future__ import annotations

import typer

from gpubalance.cli.options import SimulateOption, StdoutOptions
from gpubalance.errors import EnvironmentFault


def devices(output: StdoutOptions, simulate: SimulateOption = None) -> None:
    """List the devices, and why one can't be used.

    Example: gpubalance devices
    """
    from gpubalance.cli.output import Output
    from gpubalance.cli.progress import Progress
    from gpubalance.jobs.devices import list_devices
    from gpubalance.remedies import known
    from gpubalance.render.devices import gpus_text, simulated_text

    listing = list_devices(simulate, Progress(quiet=False))
    if listing.nvidia and listing.nvidia.problem and not output.json:
        cause = known(listing.nvidia.code).cause if listing.nvidia.code else ""
        raise EnvironmentFault(listing.nvidia.problem, cause=cause, remedy=gpus_text(listing.nvidia))
    Output(json=output.json, path=None, redact=output.redact).give(
        listing, lambda shown: gpus_text(shown.nvidia) if shown.nvidia else simulated_text(shown.simulated)
    )
    if listing.nvidia and listing.nvidia.problem:
        raise typer.Exit(EnvironmentFault.exit_code)
