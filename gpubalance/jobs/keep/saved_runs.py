"""The joint runs that `run` and `balance` made here: independent models are compared with the best of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.jobs.keep.saved import saved
from gpubalance.jobs.keep.saved_balances import BALANCES
from gpubalance.jobs.keep.saved_probes import same_settings
from gpubalance.results.common import Model
from gpubalance.results.plan import Plan
from gpubalance.results.run import Run
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings

RUNS = "runs"


def best_joint_run(devices: Sequence[Device], model: Model, settings: Settings) -> Run | None:
    """The kept run with the most samples/s on exactly these devices, with this model and these settings, or None."""
    wanted = sorted(map(_identity, devices))
    found = (
        run
        for run in _kept_runs()
        if run.model.is_like(model)
        and same_settings(run.settings, settings)
        and (settings.data is None or run.pipeline is not None)  # in a balance's run batches lie on the devices
        and sorted(_identity(run.devices[one.device]) for one in run.replicas) == wanted
    )
    return max(found, key=lambda run: run.throughput.median, default=None)


def _kept_runs() -> Iterator[Run]:
    yield from saved(RUNS, Run)
    for plan in saved(BALANCES, Plan):
        if plan.balance is not None and plan.balance.run is not None:
            yield plan.balance.run


def _identity(device: Device) -> str:
    """Text that is the same for a device whatever its index."""
    return device.model_dump_json(include={"uuid", "memory_bytes", "profile"})
