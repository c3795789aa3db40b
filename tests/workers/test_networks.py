"""A balance over hosts by a prefix. Over real links, ssh and Ray see `scripts/bench hosts`."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.keep.saved import save
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from tests.cli.program import ROOT, SHORT, here, typed
from tests.jobs.probes import probe_of, proof_of
from tests.stand_in import engine
from tests.support.known import known


def test_balance_by_a_prefix(tmp_path: Path) -> None:
    """With an engine that trains nothing and takes what the profile says, sync too.

    Devices are within 3 % of their profiles, and no split is 2 % better with the sync that was
    measured. Brute force looks for a better one.
    """
    profile = str(ROOT / "configs/two-hosts.toml")
    path = tmp_path / "plan.json"
    devices, joint = simulated_devices(profile)
    save(probe_of(devices))
    words = typed("balance --max-global-batch 160 --round-duration 0.2 --hosts")
    hosts = ("alpha,beta", "--via", "env ON={host}", "--simulate", profile)
    command = (*words, *hosts, *SHORT, "-o", str(path))
    here(*command, code=0, environment=engine(tmp_path))
    found = read_record(path, Plan)
    assert found.sync_s == pytest.approx(joint.sync_s)
    profiles = [known(device.profile) for device in devices]
    for replica in proof_of(found).replicas:
        own_s = profiles[replica.device].compute_s(replica.batch)
        assert replica.compute_s == pytest.approx(own_s, rel=0.03)

    def throughput(batches: tuple[int, ...]) -> float:
        used = [number for number, batch in enumerate(batches) if batch]
        times_s = [profiles[number].compute_s(batches[number]) for number in used]
        return sum(batches) / (max(times_s) + joint.sync_s * (len(used) > 1))

    splits = itertools.product(range(0, 161, 8), repeat=len(devices))
    best = max(throughput(split) for split in splits if 0 < sum(split) <= 160)
    assert throughput(found.batches) >= 0.98 * best, found.batches
