"""Plans from probes: what they predict, what they leave out, what they refuse.

No device and no TensorFlow is needed.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gpubalance.devices.profile import simulated_devices
from gpubalance.devices.selection import check_model, planned_devices
from gpubalance.errors import BadInput, NothingFits, PlanMismatch, UsageError
from gpubalance.jobs.plan.plan import plan
from gpubalance.jobs.saved import keep_balance
from gpubalance.planning.sync import MAX_PACK_BYTES
from gpubalance.results.common import Model
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from tests.jobs.probes import (
    SMALL,
    devices_of,
    holding_nothing,
    inside,
    of_config,
    point_of,
    probe_of,
    with_second,
)
from tests.render.golden import told
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known
from tests.support.machines import Machine

GIB = 1 << 30


PAIR, _ = of_config("gtx1080ti-gtx1080")


def planned(
    name: str = "gtx1080ti-gtx1080", gradient_bytes: int = 2592, **request: object
) -> Plan:
    there, _ = of_config(name)
    probe = probe_of(there, gradient_bytes=gradient_bytes)
    return plan(probe, there, PlanRequest(**request))


def planned_of(probe: Probe, **request: object) -> Plan:
    """The plan for all devices of a probe, without micro-batches."""
    return plan(probe, probe.devices, PlanRequest(**{"accumulate": 1, **request}))


def in_a_line(made: Plan) -> str:
    """What is told of it."""
    return " ".join(told(made).split())


def test_the_published_global_batch_is_split_as_by_hand_or_better() -> None:
    made = planned(global_batch=1384, accumulate=1, sync_s=0.012)
    assert made.global_batch == sum(made.batches) == 1384
    assert made.batches == pytest.approx((820, 568), abs=16)
    assert made.predicted.imbalance < 1.02
    assert made.predicted.throughput == pytest.approx(1384 / made.predicted.step_time_s)
    assert known(made.predicted.even).batches == (692, 692)
    assert made.predicted.speedup_over_even == pytest.approx(1.17, abs=0.06)
    assert known(made.predicted.scaling_efficiency) < 1


def with_updates(*updates_s: float) -> tuple[Device, ...]:
    """The published pair's devices with these update times."""
    profiles = [device.profile for device in PAIR if device.profile]
    changed = [altered(p, update_s=u) for p, u in zip(profiles, updates_s, strict=True)]
    return devices_of(*changed)


def test_a_step_is_compute_update_and_sync_each_once() -> None:
    there = with_updates(0.030, 0.050)
    made = planned_of(probe_of(there), global_batch=1384, sync_s=0.012)
    longest_s = 0.0
    for share, device in zip(made.shares, there, strict=True):
        profile = known(device.profile)
        assert share.update_s == pytest.approx(profile.update_s)
        compute_s = profile.alpha_s + profile.beta_s * share.batch
        assert share.compute_s == pytest.approx(compute_s)
        longest_s = max(longest_s, share.compute_s + profile.update_s)
    assert made.predicted.step_time_s == pytest.approx(longest_s + 0.012)
    assert made.predicted.sync_s == pytest.approx(0.012)
    assert made.predicted.imbalance == pytest.approx(1, abs=0.01)
    alone = planned_of(probe_of(there), global_batch=64, sync_s=1.0)
    assert alone.split.used == (0,)
    step_s = 0.04898 + 64 * 0.00069634 + 0.030
    assert alone.predicted.step_time_s == pytest.approx(step_s)
    assert alone.predicted.sync_s == 0


def test_a_probe_without_an_update_is_planned_as_all_compute() -> None:
    """A probe without an update is planned with as if all of its step were compute."""
    probe = probe_of(with_updates(0.030, 0.050))
    told = [altered(one, update_s=None) for one in probe.probes]
    older = altered(probe, probes=tuple(told))
    new, old = (
        planned_of(one, global_batch=1200, sync_s=0.012) for one in (probe, older)
    )
    assert old.batches == new.batches
    assert old.predicted == new.predicted
    busy_s = [share.compute_s + known(share.update_s) for share in new.shares]
    assert [share.compute_s for share in old.shares] == pytest.approx(busy_s)


def test_an_update_that_is_all_of_a_steps_fixed_cost_leaves_some_compute() -> None:
    probe = probe_of(with_updates(0.030, 0.050))
    first = altered(probe.probes[0], update_s=10.0)
    updating = altered(probe, probes=(first, probe.probes[1]))
    share = planned_of(updating, sync_s=0.0).shares[0]
    planned_s = known(first.step_time_model).planned.step_time_s(share.batch)
    assert share.compute_s + known(share.update_s) == pytest.approx(planned_s, rel=1e-6)


def test_a_probe_that_looked_at_no_batch_large_enough_is_named() -> None:
    told = r"^the probe of 2026-11-21\S+ stopped at --max-batch 4, but"
    with pytest.raises(NothingFits, match=told):
        planned_of(altered(probe_of(PAIR), max_batch=4))


def test_a_joint_runs_buffers_and_the_margin_are_kept_free() -> None:
    with_margin = planned(accumulate=1, margin_bytes=GIB)
    with_own = planned(accumulate=1, margin_bytes={"0": 2 * GIB})
    with_sums = planned(accumulate=1, gradient_bytes=GIB // 2)
    summed = GIB // 2 + 2 * MAX_PACK_BYTES
    for extra, each in (
        (with_margin, (GIB, GIB)),
        (with_own, (2 * GIB, 0)),
        (with_sums, (summed, summed)),
    ):
        for share, device, kept in zip(extra.shares, PAIR, each, strict=True):
            profile = known(device.profile)
            left = known(profile.memory) - kept
            assert profile.memory_at(share.limit) <= left
            assert profile.memory_at(share.limit + 8) > left


@cases("accumulate", "auto", 1)
def test_a_card_that_only_costs_sync_is_left_out_and_why(accumulate: object) -> None:
    """With and without it the plan has as many micro-batches, as more of them would help both."""
    made = planned("slow-second", sync_s=0.060, accumulate=accumulate)
    assert made.batches[1] == 0
    probe = probe_of(of_config("slow-second")[0])
    alone = sum(known(one.solo_best).throughput for one in probe.probes)
    efficiency = made.predicted.throughput / alone
    assert made.predicted.solo_sum == pytest.approx(alone)
    assert made.predicted.scaling_efficiency == pytest.approx(efficiency)
    (out,) = made.left_out
    assert out.device == 1
    assert known(out.gain) < 0
    faster = 1 / (1 + known(out.gain)) - 1
    says = f"GPU:1 is left out, as it would add less throughput than its sync costs: GPU:0 is {faster:.0%} faster alone"
    assert says.replace("%", " %") in in_a_line(made)


def test_memory_binds_and_micro_batches_unbind_if_asked_for() -> None:
    without = planned("small-memory-fast", sync_s=0.03)
    within = planned("small-memory-fast", sync_s=0.03, accumulate="auto")
    assert without.batches == without.micro_batches
    offered = known(without.accumulation)
    both = (within.batches, within.micro_batches)
    assert (offered.batches, offered.micro_batches) == both
    gain = within.predicted.throughput / without.predicted.throughput
    assert 1 + offered.gain == pytest.approx(gain)
    assert gain > 1.15
    words = f"with a global batch of {within.global_batch} instead of {without.global_batch}"
    assert words in told(without)
    assert within.accumulation is None
    # Accumulation would bring less than 5 %.
    assert planned("gtx1080ti-gtx1080", sync_s=0.012).accumulation is None
    assert without.shares[0].binds == "memory"
    assert within.micro_batches[0] < within.batches[0]
    assert within.micro_batches[0] <= without.shares[0].limit


def test_a_plan_predicts_the_largest_even_split_that_fits() -> None:
    """A plan predicts the largest even split that fits and the best split of its global batch."""
    made = planned("quick-pair", sync_s=0.006)
    even = known(made.predicted.even)
    best = known(made.predicted.best_at_even)
    limit = made.shares[1].limit
    assert even.split == BatchSplit((limit, limit))
    assert even.step_time_s == pytest.approx(0.006 + 0.008 + 0.0003 * limit)
    assert best.split.global_batch == even.split.global_batch < made.global_batch
    assert best.throughput > 1.1 * even.throughput
    text = in_a_line(made)
    ratio = made.predicted.throughput / even.throughput
    fits = "the largest even split that fits in multiples of 8"
    assert f"{ratio:.3f} × {fits}, {limit}/{limit}, which is" in text
    as_even = f"with --global-batch {2 * limit}, like the even split: "
    given = f"is predicted to give {best.throughput:.0f} samples/s"
    assert f"{as_even}the split {best.split} {given}" in text


def test_global_batches_are_told_of_a_quarter_octave_apart() -> None:
    """The pair holds 1032 and 712 samples, in two micro-batches each twice as many."""
    for accumulate, largest in ((1, 1744), (2, 3488)):
        made = planned(sync_s=0.01, accumulate=accumulate)
        assert sum(share.limit for share in made.shares) * accumulate == largest
        wanted = {int(largest / 2 ** (step / 4)) // 8 * 8 for step in range(24)}
        told = [one.split.global_batch for one in made.predicted.by_global_batch]
        assert told == sorted(wanted)
        for one in made.predicted.by_global_batch:
            rate = one.split.global_batch / one.step_time_s
            assert one.throughput == pytest.approx(rate)
        tenth = made.predicted.by_global_batch[10].split
        asked: Any = {"global_batch": tenth.global_batch, "accumulate": accumulate}
        assert planned(sync_s=0.01, **asked).split == tenth
    capped = planned(sync_s=0.01, accumulate=1, max_global_batch=800)
    assert capped.predicted.by_global_batch[-1].split.global_batch == 800
    assert not planned(sync_s=0.01, global_batch=800).predicted.by_global_batch


def test_a_limit_that_is_no_memorys_is_called_what_it_is() -> None:
    made = probe_of(PAIR)
    probes = tuple(inside(probe, "batch_limit", fails=None) for probe in made.probes)
    limited = planned_of(altered(made, probes=probes), sync_s=0.1)
    binds = {share.binds for share in limited.shares}
    assert "max batch" in binds
    assert "memory" not in binds


def test_a_global_batch_that_only_micro_batches_make_possible_says_so() -> None:
    with pytest.raises(UsageError) as error:
        planned(global_batch=2400)
    too_large = "a global batch of 2,400 is too large: at most 1,744 fit"
    assert error.value.message == too_large
    found = "the nearest that is possible: 1744; or --accumulate auto reaches it with micro-batches"
    assert error.value.remedy == found


def test_a_global_batch_above_its_upper_limit_names_both() -> None:
    both = "--global-batch 128 is more than --max-global-batch 127"
    with pytest.raises(UsageError, match=both):
        planned(global_batch=128, max_global_batch=127)
    assert planned(global_batch=128, max_global_batch=128).global_batch == 128


@cases(
    "global_batch, remedy",
    (
        1001,
        "--batch-multiple 1 allows it; or the nearest that is possible: 1000 or 1008",
    ),
    (2401, "the nearest that is possible: 1744"),
)
def test_a_finer_multiple_is_offered_only_where_it_is_enough(
    global_batch: int, remedy: str
) -> None:
    with pytest.raises(UsageError) as error:
        planned(global_batch=global_batch)
    assert error.value.remedy == remedy


def test_learning_rate_advice_is_of_the_change_of_the_global_batch() -> None:
    rate = known(planned(global_batch=1024, from_batch=256).learning_rate)
    assert (rate.linear, rate.square_root) == (4.0, 2.0)


def test_with_a_noise_scale_the_split_that_learns_fastest_is_chosen() -> None:
    """With a noise scale the split that learns fastest is chosen and held against others.

    Against all 12,000 splits of the pair, by arithmetic of its own.
    """
    scale = 300.0
    sync_s = 0.012
    made = planned(noise_scale=scale, sync_s=sync_s)

    def goodput(batches: tuple[int, ...]) -> float:
        times_s = []
        for batch, device in zip(batches, PAIR, strict=True):
            if batch:
                profile = known(device.profile)
                times_s.append(profile.alpha_s + profile.beta_s * batch)
        step_s = max(times_s) + sync_s * (len(times_s) > 1)
        return sum(batches) / step_s / (1 + sum(batches) / scale)

    first, second = (range(0, share.limit + 1, 8) for share in made.shares)
    best = max(goodput((a, b)) for a in first for b in second if a + b)
    assert goodput(made.batches) == pytest.approx(best)
    efficiency = 1 / (1 + made.global_batch / scale)
    assert made.predicted.efficiency == pytest.approx(efficiency)
    assert made.predicted.goodput == pytest.approx(best)
    others = {one.of: one for one in made.predicted.by_goodput}
    assert list(others) == ["chosen", "most samples/s", "even", "GPU:0 alone"]
    fastest = max(one.throughput for one in others.values())
    assert others["most samples/s"].throughput == fastest
    assert others["chosen"].goodput == max(one.goodput for one in others.values())
    alone = max(goodput((a, 0)) for a in first if a)
    assert others["GPU:0 alone"].goodput == pytest.approx(alone)
    rate = known(made.learning_rate)
    old = rate.from_batch
    new = made.global_batch
    assert rate.measured == pytest.approx((1 + scale / old) / (1 + scale / new))
    text = in_a_line(made)
    assert "goodput = samples/s × efficiency" in text
    sgd = f"multiply by {rate.measured:.3g} (SGD, by the noise scale)"
    assert f"{sgd} or {rate.square_root:.3g} (Adam)" in text


@cases("scale, beyond", (1e-3, 9e-4), (9e11, 1e12))
def test_each_noise_scale_that_is_taken_is_planned_with(
    scale: float, beyond: float
) -> None:
    assert known(planned(noise_scale=scale).predicted.goodput) > 0
    with pytest.raises(ValidationError, match="noise_scale"):
        planned(noise_scale=beyond)


def test_without_a_noise_scale_it_is_said_what_was_maximised() -> None:
    """Without a noise scale it is said what was maximised where the global batch is free."""
    text = "this maximises samples/s only; --noise-scale also considers learning"
    assert text in told(planned())
    assert text not in told(planned(global_batch=1024))


def test_another_device_is_none_of_the_probes() -> None:
    other = altered(PAIR[0], index=2, uuid="other")
    with pytest.raises(BadInput, match="the probe has no GPU:2"):
        plan(probe_of(PAIR), (*PAIR, other), PlanRequest())


def test_a_plan_finds_its_devices_by_uuid_and_refuses_others() -> None:
    """A plan finds its devices by UUID and refuses others with the difference."""
    made = planned()
    moved = tuple(altered(device, index=1 - device.index) for device in PAIR)
    assert planned_devices(made, made.split.used, moved) == moved
    gone = r"GPU:1 \(GeForce GTX 1080, .*\) is missing"
    with pytest.raises(PlanMismatch, match=gone):
        planned_devices(made, made.split.used, PAIR[:1])
    with pytest.raises(PlanMismatch, match=r"has 1 B of memory, not [0-9.]+ GiB"):
        planned_devices(made, [0], (altered(PAIR[0], memory_bytes=1), PAIR[1]))
    plain = altered(made, devices=simulated_devices("2")[0])
    with pytest.raises(PlanMismatch, match=r"is for 2 plain CPU devices \(--simulate"):
        planned_devices(plain, made.split.used, PAIR)
    small = Model(name="small", parameters=648, gradient_bytes=2592)
    check_model(made.model, small)
    with pytest.raises(PlanMismatch, match="648 parameters"):
        check_model(made.model, altered(small, parameters=649))
    shaped = altered(small, input_shapes=((28, 28, 1),))
    check_model(made.model, shaped)  # an older plan does not say
    check_model(shaped, shaped)
    told = r"parameters, of samples of 28×28×1, not for .* of samples of any×80"
    with pytest.raises(PlanMismatch, match=told):
        check_model(shaped, altered(small, input_shapes=((None, 80),)))


@cases("seed", 5007, 5009)
def test_a_plan_after_a_balance_is_by_what_that_measured(seed: int) -> None:
    machine = Machine(seed, 0.02)
    made = machine.balanced()
    before = plan(machine.probe, machine.devices, machine.wanted)
    asked = BalanceRequest(devices=machine.devices, settings=SMALL, joint=machine.joint)
    keep_balance(asked, made)
    after = plan(machine.probe, machine.devices, machine.wanted)
    assert (before.balanced, after.balanced) == (None, made.created)
    assert after.batches == made.batches != before.batches
    assert after.sync_s == pytest.approx(made.sync_s)
    limits = [[share.limit for share in one.shares] for one in (after, made)]
    assert limits[0] == limits[1]
    rates = [one.predicted.throughput for one in (after, made)]
    assert rates[0] == pytest.approx(rates[1], rel=0.02)


def test_one_device_that_is_faster_with_xla_makes_the_sum_one_with_it() -> None:
    probe = probe_of(PAIR)
    first, second = probe.probes
    rate = 1.5 * known(second.solo_best).throughput
    fast = point_of(known(PAIR[1].profile), 512, 512 / rate)
    faster = altered(second, with_xla=fast)
    made = planned_of(altered(probe, probes=(first, faster))).predicted
    assert made.solo_with_xla
    assert made.solo_sum == pytest.approx(known(first.solo_best).throughput + rate)
    best = known(second.solo_best)
    same = point_of(known(PAIR[1].profile), best.batch, best.batch / best.throughput)
    for with_xla in (None, same):
        no_faster = altered(second, with_xla=with_xla)
        plain = altered(probe, probes=(first, no_faster))
        assert not planned_of(plain).predicted.solo_with_xla


def test_a_device_of_one_size_is_planned_with_that_size() -> None:
    probe = with_second(probe_of(PAIR), 8, 16, curve=probe_of(PAIR).probes[1].curve[:1])
    assert planned_of(probe).batches[1] in (0, 8)
    assert plan(probe, PAIR[1:], PlanRequest(accumulate=1)).batches == (8,)


def test_a_device_that_holds_nothing_is_left_out_and_that_is_said() -> None:
    made = planned_of(holding_nothing(probe_of(PAIR)))
    assert made.batches[1] == 0
    efficiency = known(made.predicted.scaling_efficiency)
    assert made.predicted.solo_sum == made.predicted.throughput / efficiency
    assert "GPU:1 is left out: it has no memory for a batch of 8" in told(made)
