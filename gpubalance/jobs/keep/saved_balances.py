"""The results of balances, kept under the user's state directory: plans of the same devices start from them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpubalance.errors import BadInput
from gpubalance.jobs.keep.journal import content_key
from gpubalance.jobs.keep.saved import put
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import BalanceRequest, Settings
from gpubalance.system.state import state_folder

BALANCES = "balances"


def keep_balance(request: BalanceRequest, plan: Plan) -> None:
    """Keeps the result of a balance instead of an older one by the same probe, if there is room for it.

    A balance that has not measured several devices together is not kept: it knows no more than the probe.
    """
    if plan.sync_s is None:
        return
    put(_path(plan.probed, request.devices, request.settings, request.joint), plan)


def balance_by(probe: Probe, devices: Sequence[Device], joint: JointProfile | None = None) -> Plan | None:
    """The result of the balance of exactly these devices that started from this probe, or None.

    With `joint` None, as a probe's file does not say what a joint run adds, it is the latest one whatever that was.
    """
    path = _path(probe.created, devices, probe.settings, joint)
    for found in sorted(path.parent.glob(path.name), key=lambda one: one.stat().st_mtime, reverse=True):
        with suppress(BadInput):  # damaged
            return read_record(found, Plan)
    return None


def _path(probed: str, devices: Sequence[Device], settings: Settings, joint: JointProfile | None) -> Path:
    """The file of a balance; with `joint` None the pattern of those with any."""
    alone = settings.model_copy(update={"all_reduce": "auto"})  # one probe serves balances with any
    ending = "*" if joint is None else content_key(joint)
    return state_folder(BALANCES) / f"{content_key(probed, *devices, alone)}-{ending}.json"
