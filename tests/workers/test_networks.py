"""A balance over hosts by a prefix. Over real links, ssh and Ray see `scripts/bench hosts`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.saved import save
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from tests.cli.program import ROOT, SHORT, here, typed
from tests.jobs.probes import probe_of, proof_of
from tests.stand_in import engine


def test_balance_by_a_prefix(tmp_path: Path) -> None:
    """With an engine that trains nothing and takes what the profile says, sync too."""
    profile = str(ROOT / "configs/two-hosts.toml")
    path = tmp_path / "plan.json"
    devices, joint = simulated_devices(profile)
    save(probe_of(devices))
    words = typed("balance --max-global-batch 160 --round-duration 0.2 --hosts")
    hosts = ("alpha,beta", "--via", "env ON={host}", "--simulate", profile)
    command = (*words, *hosts, *SHORT, "-o", str(path))
    here(*command, code=0, environment=engine(tmp_path))
    found = read_record(path, Plan)
    pairs = zip(found.devices, found.batches, strict=True)
    assert {device.host for device, batch in pairs if batch} == {"alpha", "beta"}
    assert found.sync_s == pytest.approx(joint.sync_s)
    assert len(proof_of(found).replicas) == len(found.split.used)
