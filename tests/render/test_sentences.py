"""Sentences with figures: what a gain is called, what was lost where, and where a step's time went."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpubalance.render.plan import (
    _advice,
    _syncs,
    _without,
    aim_text,
    bounds_text,
    gain_percent,
    left_out_text,
    plan_summary,
)
from gpubalance.render.probe import _limit
from gpubalance.render.rates import (
    _gain,
    epoch_text,
    half_text,
    most_fed,
    pipeline_sentences,
    xla_text,
)
from gpubalance.render.run import (
    Loss,
    all_losses,
    gap_table,
    large_losses,
    run_summary,
    step_text,
)
from gpubalance.render.table import lines_of
from gpubalance.results.common import Throughput
from gpubalance.results.plan import LearningRate, LeftOut, Plan
from gpubalance.results.probe import BatchLimit, Trial
from gpubalance.results.run import InputPipeline, Run, SlowSteps, SoloGap
from gpubalance.results.timing import Remedy
from tests.jobs.drawn import drawn_run, noisy_devices
from tests.jobs.probes import CONFIGS
from tests.render.measurements import PAIR, step_time
from tests.render.samples import BALANCE, PLAN, fed_run, subject
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known


@pytest.fixture(scope="module")
def plan() -> Plan:
    found = subject(PLAN).plan
    assert found is not None
    return found


@pytest.fixture(scope="module")
def run() -> Run:
    devices, joint = noisy_devices(CONFIGS / "quick-pair.toml", 0.0)
    return drawn_run(devices, joint, (80, 48), seed=0)


@cases("part, text", (0.0531, "5.3 %"), (0.0994, "9.9 %"), (0.0996, "10 %"))
def test_a_gain_has_a_decimal_below_ten_per_cent(part: float, text: str) -> None:
    assert gain_percent(part) == text


@cases(
    "gain, others, one",
    (0.0, "no faster with it", "no faster with it"),
    (-0.05, "5.3 % faster without it", "GPU:0 is 5.3 % faster alone"),
    (-0.2, "25 % faster without it", "GPU:0 is 25 % faster alone"),
    (-0.5, "2.0 times as fast without it", "GPU:0 is 2.0 times as fast alone"),
)
def test_leaving_one_out_gains(plan: Plan, gain: float, others: str, one: str) -> None:
    assert _without(plan, gain) == others
    assert _without(of_first(plan), gain) == one


TUNED_FOR_32 = "learning rate: if yours was tuned for batch 32, multiply by 2 ("
ROUGH = "measured too imprecisely to tell"
NO_FASTER = "; your input pipeline limits this"


def of_first(plan: Plan) -> Plan:
    batches = (plan.batches[0], *[0] * (len(plan.batches) - 1))
    return altered(plan, batches=batches, micro_batches=batches)


@cases(
    "with_it_s, without_s, text",
    (None, 0.01, ""),
    (0.01, 0.01, ""),
    (0.02, 0.01, " (sync 20.0 ms with it, 10.0 ms without)"),
    (0.02, 0.0, " (sync 20.0 ms with it)"),
)
def test_sync_is_told_where_it_is_longer_with_the_device(
    plan: Plan, with_it_s: float | None, without_s: float, text: str
) -> None:
    predicted = altered(plan.predicted, sync_s=without_s)
    assert _syncs(altered(plan, predicted=predicted), with_it_s) == text


def with_binds(plan: Plan, *binds: str) -> Plan:
    shares = []
    for share, bind in zip(plan.shares, binds, strict=True):
        shares.append(altered(share, binds=bind, limit=640 + share.device))
    return altered(plan, shares=tuple(shares))


def test_why_devices_have_no_more(plan: Plan) -> None:
    full = with_binds(plan, "speed", "memory")
    limited = "GPU:1 is limited by its memory (641)"
    waits = "GPU:0 could take more, but the others would wait"
    assert bounds_text(full) == f"{limited}; {waits}"
    shares = [
        altered(share, limit=640) for share in with_binds(plan, *2 * ["memory"]).shares
    ]
    both_full = altered(plan, shares=tuple(shares))
    assert bounds_text(both_full) == "GPU:0, GPU:1 are limited by their memory (640)"
    shares = [altered(share, binds="max batch") for share in shares]
    untried = altered(plan, shares=tuple(shares))
    assert bounds_text(untried) == "GPU:0, GPU:1 were measured only up to 640"
    alike = with_binds(plan, "global batch", "global batch")
    both = "GPU:0, GPU:1 could take more"
    assert bounds_text(alike) == f"{both} with a larger global batch"
    fine = with_binds(plan, "speed", "granularity")
    larger = fine.predicted.by_global_batch
    assert any(one.split.global_batch > plan.global_batch for one in larger)
    none = "but no larger global batch gives clearly more samples/s"
    assert bounds_text(fine) == f"{both}, {none}"
    none_larger = altered(fine, predicted=altered(fine.predicted, by_global_batch=()))
    assert bounds_text(none_larger) == f"{both} with a larger global batch"
    assert aim_text(plan) == "samples/s"
    noisy = altered(plan.predicted, noise_scale=100.0)
    assert aim_text(altered(plan, predicted=noisy)) == "goodput"


def test_why_a_device_is_left_out(plan: Plan) -> None:
    multiple = plan.batch_multiple
    out = LeftOut(device=1, gain=-0.2, sync_s=None)
    alone = "GPU:0 is 25 % faster alone"
    costs = f"GPU:1 is left out, as it would add less throughput than its sync costs: {alone}"
    for_sync = with_binds(of_first(plan), "speed", "sync")
    assert left_out_text(for_sync, out) == costs
    noisy = altered(plan.predicted, noise_scale=100.0)
    by_goodput = f"{costs.replace('throughput', 'goodput')}, by goodput"
    assert left_out_text(altered(for_sync, predicted=noisy), out) == by_goodput
    slow = with_binds(of_first(plan), "speed", "speed")
    assert left_out_text(slow, out) == f"GPU:1 is left out: {alone}"
    unknown = altered(out, gain=None)
    assert left_out_text(slow, unknown) == "GPU:1 has no samples"
    shares = list(slow.shares)
    for limit, has_room in ((multiple - 1, False), (multiple, True)):
        shares[1] = altered(shares[1], limit=limit)
        text = left_out_text(altered(slow, shares=tuple(shares)), unknown)
        assert ("has no memory" in text) is not has_room
    shares[1] = altered(shares[1], limit=0)
    full = altered(slow, shares=tuple(shares))
    no_room = f"GPU:1 is left out: it has no memory for a batch of {multiple}"
    assert left_out_text(full, out) == no_room


@cases(
    "own, from_batch, to_batch, global_batch, text",
    (None, None, None, 64, ""),
    (32, 32, 64, 64, ""),  # said with the user's own batch
    (64, 64, 64, 64, "global batch 64 as before: keep the learning rate"),
    (16, 32, 64, 64, TUNED_FOR_32),
    (None, 32, 64, 64, TUNED_FOR_32),
)
def test_how_the_learning_rate_changes(
    plan: Plan,
    own: int | None,
    from_batch: int,
    to_batch: int,
    global_batch: int,
    text: str,
) -> None:
    rate = from_batch and LearningRate(
        from_batch=from_batch, to_batch=to_batch, linear=2.0, square_root=1.414
    )
    made = altered(plan, own_batch=own, global_batch=global_batch, learning_rate=rate)
    assert _advice(made).startswith(text)
    assert bool(_advice(made)) == bool(text)
    assert _advice(altered(made, own_batch_stays=True, own_batch=1)) == ""


GAP = SoloGap(
    solo_sum=1000.0,
    left_out=0.0,
    batch_sizes=50.0,
    slowdown=(30.0, -20.0),
    imbalance=0.9,
    sync=100.0,
    slow=5.0,
    throughput=834.1,
    without_xla=0.0,
)


def test_what_was_lost_is_told_with_the_largest_causes_first() -> None:
    losses = [(loss.cause, loss.rate) for loss in all_losses(PAIR, GAP)]
    assert losses == [
        ("left out", 0.0),
        ("not each device's best batch size", 50.0),
        ("GPU:0 slower than alone", 30.0),
        ("GPU:1 faster than alone", -20.0),
        ("waiting for the slowest device", 0.9),
        ("summing gradients", 100.0),
        ("rare slow steps", 5.0),
    ]
    # A sum that adds up: 1000 − 50 − 30 + 20 − 100 − 5.90 = 834
    assert [line.split() for line in lines_of(gap_table(PAIR, GAP), 80) if line] == [
        ["samples/s,", "from", "alone", "to", "together"],
        ["the", "devices", "alone", "1000"],
        ["not", "each", "device's", "best", "batch", "size", "−50.0"],
        ["GPU:0", "slower", "than", "alone", "−30.0"],
        ["GPU:1", "faster", "than", "alone", "+20.0"],
        ["summing", "gradients", "−100"],
        ["the", "rest", "−5.90"],
        ["together", "834"],
    ]
    assert [loss.cause for loss in large_losses(PAIR, GAP)] == [
        "not each device's best batch size",
        "GPU:0 slower than alone",
        "GPU:1 faster than alone",
        "summing gradients",
        "rare slow steps",
    ]
    # Of the solo sum a thousandth is worth a word.
    just = altered(GAP, imbalance=1.0)
    causes = [loss.cause for loss in large_losses(PAIR, just)]
    assert "waiting for the slowest device" in causes
    nothing = dict.fromkeys(("batch_sizes", "imbalance", "sync", "slow"), 0.0)
    none = GAP.model_copy(update=nothing | {"slowdown": (0.0, 0.0)})
    assert not list(gap_table(PAIR, none))
    xla = all_losses(PAIR, altered(GAP, without_xla=7.0, slow=0.0))
    assert [loss.cause for loss in xla[-2:]] == ["summing gradients", "without XLA"]
    texts = [Loss("a", rate).text for rate in (38.0, -38.0, 0.0)]
    assert texts == ["−38.0", "+38.0", "−0.00"]


def test_the_least_interval_is_told_as_a_part() -> None:
    assert half_text(1000.0, (999.0, 1001.0)) == " ± 0.1 %"
    assert half_text(1000.0, (100.0, 2000.0)) == " ± 95.0 %"
    assert half_text(1000.0, (1.0, 2001.0)) == " ± over 100 %"
    assert half_text(1000.0, None) == ""


def of_steps(run: Run, **changes: Any) -> Run:
    usual: Any = {"step_time_s": step_time(0.2), "sync_s": 0.03, "slow_s": 0.0}
    usual |= {"excess_s": 0.0, "input_wait_s": 0.0, "imbalance": 1.25}
    return run.model_copy(update=usual | changes)


def test_a_step_is_the_sum_of_what_its_slowest_device_does(run: Run) -> None:
    first, second = run.replicas
    first = altered(first, compute_s=0.1, update_s=0.02, wait_s=0.05)
    second = altered(second, compute_s=0.11, update_s=0.06, wait_s=0.0)
    both = (first, second)
    parts = "slowest compute 110 ms + update 60.0 ms + sync 30.0 ms"
    imbalance = "imbalance 1.250 (1 = they finish together)"
    assert step_text(of_steps(run), both) == f"step 200 ms = {parts}; {imbalance}"
    waiting = altered(second, wait_s=0.00021, update_s=0.02)
    told = step_text(of_steps(run), (first, waiting))
    assert "110 ms + update 20.0 ms + wait 210 µs + sync" in told
    hardly = altered(waiting, wait_s=0.00019)
    assert "wait" not in step_text(of_steps(run), (first, hardly))
    slow = step_text(of_steps(run, slow_s=0.004, excess_s=0.00021), both)
    says = "+ rare slow steps 4.00 ms − 210 µs (timestamped steps were slower)"
    assert says in slow
    seen = SlowSteps(count=3, timed=240)
    told = "+ rare slow steps 4.00 ms (3 of 240 steps timed one by one took over 1.5 × the median);"
    assert told in step_text(of_steps(run, slow_s=0.004, slow_steps=seen), both)
    between = SlowSteps(count=0, timed=9)
    wanted = "4.00 ms (in steps between the 9 that were timed one by one; none of those was slow);"
    assert wanted in step_text(of_steps(run, slow_s=0.004, slow_steps=between), both)
    assert "−" not in step_text(of_steps(run, excess_s=0.00019), both)
    alone = altered(second, update_s=0.0)
    assert step_text(of_steps(run), (alone,)) == "step 200 ms = slowest compute 110 ms"


@cases(
    "rates, maximum, text",
    ({"GPU:0 alone": 1000.0}, math.inf, "50.0 s with GPU:0 alone"),
    ({"this split": 500.0}, math.inf, "100 s with this split"),
    ({"this split": 50_000 / 120}, math.inf, "2.00 min with this split"),
    ({"this split": 50_000 / 7199}, math.inf, "120 min with this split"),
    ({"this split": 50_000 / 7200}, math.inf, "2.00 h with this split"),
    ({"a": 1000.0, "b": 500.0}, 800.0, f"62.5 s with a, 100 s with b{NO_FASTER}"),
    ({"a": 800.0}, 800.0, "62.5 s with a"),
)
def test_an_epoch_s_duration(
    rates: dict[str, float], maximum: float, text: str
) -> None:
    assert epoch_text(50_000, rates, maximum) == f"an epoch of 50,000 samples: {text}"


@cases(
    "median, interval, text",
    (1340.0, None, ("34 % more", "worth it")),
    (1051.0, None, ("5 % more", "worth it")),
    (1049.0, None, ("5 % more", "hardly worth it")),
    (1000.0, None, ("no more", "not worth it")),
    (950.0, None, ("5 % less", "not worth it")),
    (1020.0, (980.0, 1060.0), ("2 % more", f"{ROUGH} whether it is worth it")),
    (1020.0, (980.0, 1049.0), ("2 % more", "hardly worth it")),
    (1100.0, (1001.0, 1200.0), ("10 % more", "worth it")),
)
def test_what_a_gain_is_worth(
    median: float, interval: tuple[float, float] | None, text: tuple[str, str]
) -> None:
    assert _gain(Throughput(median=median, ci95=interval), 1000.0) == text


def test_xla_is_recommended_where_it_is_clearly_faster() -> None:
    assert xla_text("GPU:0", None) == ""
    assert xla_text("GPU:0", 1.05) == ""
    trains = "gpubalance balance --xla trains with it"
    assert xla_text("GPU:0", 1.06) == f"GPU:0 alone is 6 % faster with XLA: {trains}"


def pipeline(alone: float, held: float | None, *, binds: bool) -> InputPipeline:
    remedies = (Remedy(where="data.py:3", what="prefetch"),) if binds else ()
    measured = held and Throughput(median=held, ci95=None)
    rates: Any = {"alone": Throughput(median=alone, ci95=None), "held": measured}
    return InputPipeline(processor_use=0.55, binds=binds, remedies=remedies, **rates)


def test_what_an_input_pipeline_gives() -> None:
    assert most_fed(None) == math.inf
    assert most_fed(pipeline(500.0, None, binds=False)) == math.inf
    assert most_fed(pipeline(500.0, None, binds=True)) == 500.0
    binding = pipeline(500.0, 800.0, binds=True)
    gives = "your input pipeline gives 500 samples/s; these devices could take 900"
    assert list(pipeline_sentences(binding, 900.0)) == [
        f"{gives} (it uses 55 % of the processors)",
        "  → data.py:3: what usually helps: prefetch",
    ]
    first, _ = pipeline_sentences(binding, None)
    assert "could take 800 " in first
    usual = altered(binding, remedies=())
    (_, remedy) = pipeline_sentences(usual, 900.0)
    assert remedy.startswith("  → no usual remedy applies: do less work per sample")
    fast = pipeline(5000.0, 800.0, binds=False)
    alone = "your input pipeline alone gives 5000 samples/s, with 55 % of the processors, and keeps up"
    assert list(pipeline_sentences(fast, 900.0)) == [alone]
    (told,) = pipeline_sentences(fast, 900.0, fed_the_split=True)
    assert told == f"{alone}; without waiting for it the split gives 800"
    unknown = pipeline(5000.0, None, binds=False)
    assert list(pipeline_sentences(unknown, 900.0, fed_the_split=True)) == [alone]
    assert list(pipeline_sentences(None, 900.0)) == []
    be, keep = "be the bottleneck", "keep up with that too"
    for scale, takes, verdict in ((8, 7200, be), (4, 3600, keep)):
        (_, told) = pipeline_sentences(fast, 900.0, time_scale=scale)
        without = f"without --time-scale {scale} these devices could take {takes}"
        assert told == f"{without}: your pipeline would {verdict}"


def test_a_pipeline_is_held_against_the_devices_in_use_only() -> None:
    """Of two devices that give 1500 and 900 samples/s alone, the second has no samples."""
    run, plan = fed_run().result, known(subject(BALANCE).plan)
    assert isinstance(run, Run)
    binding = pipeline(500.0, 800.0, binds=True)
    share: Any = {"batches": (820, 0), "micro_batches": (820, 0), "global_batch": 820}
    alone = altered(run, **share, replicas=run.replicas[:1], pipeline=binding)
    balance = altered(known(plan.balance), run=alone)
    proven = altered(plan, balance=balance, pipeline=binding)
    for told in (run_summary(alone), plan_summary(proven)):
        assert "these devices could take 1500 (" in str(next(told))


TOO_FULL = "leaves less than the margin"
NO_FURTHER = "the search ended there, because throughput stopped rising at 16"
CONTINUES = "probe --find-limit continues"


@cases(
    "found, text",
    ({"fits": 224, "fails": 232}, f"224 trains, 232 does not ({TOO_FULL})"),
    ({"fits": None, "fails": 1}, "not even 1 fits"),
    ({"fits": 224}, "none found up to batch 224"),
    ({"fits": 224, "plateau": 16}, f"at least 224 trains; {NO_FURTHER}; {CONTINUES}"),
)
def test_what_a_batch_limit_is_called(found: dict[str, int], text: str) -> None:
    trials = []
    for batch, outcome in ((232, "oom"), (224, "fits"), (232, "margin")):
        trials.append(Trial(batch=batch, outcome=outcome, seconds=1.0, reason="a test"))
    known: Any = {"fails": None, "max_batch": 224, "trials": tuple(trials)}
    known |= {"memory_bytes": None, "needed_bytes": None}
    assert _limit(BatchLimit(**known | found)) == f"batch limit: {text}"
