"""Which of the probes that are kept here a plan, a balance and a comparison use."""

from __future__ import annotations

import pytest

from gpubalance.jobs.saved import (
    ALL,
    best_probe,
    find_device,
    kept_probe,
    save,
    saved,
    solo_bests,
)
from gpubalance.render.rates import gain_sentences
from gpubalance.results.probe import DeviceProbe, Probe, Trial
from gpubalance.results.run import Run, alone_in_use
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from tests.jobs.probes import (
    QUICK,
    SMALL,
    devices_of,
    holding_nothing,
    inside,
    probe_of,
)
from tests.render.golden import DATA
from tests.support.altered import altered
from tests.support.known import known

DEVICES = devices_of(QUICK, altered(QUICK, name="other"))


def test_the_latest_whole_probe_of_devices_and_settings_is_found() -> None:
    first = probe_of(DEVICES)
    save(first)
    second = altered(first, created="later")
    save(second)
    found = known(best_probe(DEVICES[1:], SMALL))
    assert found.created == "later"
    one = find_device(second, DEVICES[1])
    assert isinstance(one, DeviceProbe)
    assert one.device == 1
    assert best_probe(DEVICES, altered(SMALL, precision="float32")) is None
    assert best_probe(DEVICES, altered(SMALL, all_reduce="one-device")) == found
    changed = altered(DEVICES[0], profile=altered(QUICK, beta_s=1.0))
    assert best_probe([changed], SMALL) is None


def test_what_another_command_deletes_meanwhile_is_passed_over() -> None:
    first = probe_of(DEVICES)
    paths = [known(save(first)), known(save(altered(first, created="later")))]
    found = saved(Probe)
    assert next(found).created == "later"
    paths[0].unlink()
    assert not list(found)
    paths[0].symlink_to("nowhere.json")
    assert len(list(saved(Probe))) == 1


def test_a_probe_that_an_option_limited_does_not_replace_a_whole_one() -> None:
    """A probe that an option limited replaces no whole one, nor passes for the device's best."""
    split = BatchSplit((24, 16))
    save(limited_to(32, probe_of(DEVICES)))
    save(limited_to(4, probe_of(DEVICES)))
    assert known(best_probe(DEVICES, SMALL)).max_batch == 32
    assert best_probe(DEVICES, SMALL, up_to=40) is None
    assert solo_bests(DEVICES, split, SMALL) is None
    assert solo_bests(DEVICES, BatchSplit((16, 16)), SMALL) is not None

    # Memory ended this probe.
    whole = altered(probe_of(DEVICES), created="whole", max_batch=1 << 20)
    save(whole)
    save(limited_to(4, probe_of(DEVICES)))
    save(by_margin(probe_of(DEVICES)))
    assert known(best_probe(DEVICES, SMALL, up_to=ALL)).created == "whole"
    (best, _) = solo_bests(DEVICES, split, SMALL) or ()
    assert best.batch == 112
    assert best.at_global_batch == pytest.approx(40 / QUICK.compute_s(40))


def test_a_balance_takes_a_probe_whose_throughput_stopped_rising() -> None:
    """It would measure no further itself, unless it is asked for a larger global batch."""
    save(_with_limits(probe_of(DEVICES), plateau=64, fits=128, fails=None))
    plain = BalanceRequest(devices=DEVICES, settings=SMALL)
    assert kept_probe(plain) is not None
    for global_batch, serves in ((128, True), (256, False)):
        asked = altered(plain, plan=PlanRequest(global_batch=global_batch))
        assert (kept_probe(asked) is not None) == serves


def test_a_balance_probes_again_what_held_nothing_at_all() -> None:
    """Another program may have held the memory, and the plan's error would not tell why."""
    save(holding_nothing(probe_of(DEVICES)))
    asked = BalanceRequest(devices=DEVICES, settings=SMALL)
    assert kept_probe(asked) is not None
    assert kept_probe(altered(asked, devices=DEVICES[1:])) is None


def test_the_solo_sum_has_the_devices_that_a_split_leaves_out() -> None:
    """The solo sum has the devices that a split leaves out but not those that hold nothing."""
    split = BatchSplit((24, 0))
    save(probe_of(DEVICES))
    first, second = solo_bests(DEVICES, split, SMALL) or ()
    assert alone_in_use((first, second), split.batches) == first.throughput
    run = Run.model_validate_json((DATA / "pair-run.json").read_text())
    against = altered(run.baselines, solo_sum=2000.0, solo_best=(first, second))
    batches = {"batches": split.batches, "micro_batches": split.batches}
    left = altered(run, **batches, scaling_efficiency=0.9)
    told = list(gain_sentences(left, against, split, "gave"))[-1]
    in_use = f"{first.throughput:.0f} of those in use"
    assert told.endswith(f"alone, 2000 samples/s in total, {in_use}")
    save(holding_nothing(probe_of(DEVICES)))
    assert solo_bests(DEVICES, split, SMALL) == (first,)


def limited_to(maximum: int, probe: Probe) -> Probe:
    """The probe as it is with --max-batch."""
    return _with_limits(altered(probe, max_batch=maximum), fits=maximum, fails=None)


def by_margin(probe: Probe) -> Probe:
    """The probe as it is with a --margin that leaves 64 samples."""
    trial = Trial(batch=72, outcome="margin", seconds=0.1, reason="")
    return _with_limits(probe, fits=64, fails=72, trials=(trial,))


def _with_limits(probe: Probe, **limits: object) -> Probe:
    limited = [inside(one, "batch_limit", **limits) for one in probe.probes]
    return altered(probe, probes=tuple(limited))
