"""The rules of others, and the brute force beside which they are judged."""

from __future__ import annotations

from itertools import islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.benches.rules import (
    AtLimits,
    Published,
    RuleMachine,
    WithLinks,
    best_rate,
    ends,
)
from scripts.benches.rules_of_others import RULES, Given
from tests.support.known import known
from tests.support.machines import limit_of

BETAS = (0.001, 0.002, 0.004)


def asked(name: str, given: Given) -> list[tuple[int, ...]]:
    """The first 40 splits that a rule asks for, of devices that take 10 ms and some for a sample."""
    rule = RULES[name](given)
    splits = []
    ask = next(rule)
    for _ in range(40):
        if not ask.alone:
            splits.append(ask.split)
        pairs = zip(BETAS, ask.split, strict=True)
        ask = rule.send([0.010 + beta * batch for beta, batch in pairs])
    return splits


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("limits", [(999, 999, 999), (80, 999, 30), (100, 61, 40)])
def test_a_rule_keeps_the_global_batch_and_the_limits(
    name: str, limits: tuple[int, ...]
) -> None:
    for split in asked(name, Given(200, limits)):
        assert sum(split) == 200
        assert all(
            1 <= batch <= maximum for batch, maximum in zip(split, limits, strict=True)
        )


@given(st.data())
def test_shares_in_any_proportion_are_whole_and_within_the_limits(
    data: st.DataObject,
) -> None:
    """Also where a proportion gives less than a sample."""
    limits = data.draw(st.lists(st.integers(1, 200), min_size=1, max_size=5).map(tuple))
    batch = data.draw(st.integers(len(limits), sum(limits)))
    wanted = [data.draw(st.floats(0.01, 100)) for _ in limits]
    split = Given(batch, limits).rounded(wanted)
    assert sum(split) == batch
    assert all(
        1 <= size <= maximum for size, maximum in zip(split, limits, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("equal", (234, 233, 233)),
        ("by hand", (396, 202, 102)),
        ("DBS", (400, 200, 100)),
        ("OmniLearn", (396, 202, 102)),
        ("LBB", (400, 200, 100)),
        ("Cannikin", (400, 200, 100)),
    ],
)
def test_a_rule_ends_where_its_source_says(name: str, end: tuple[int, ...]) -> None:
    last = asked(name, Given(700, (999, 999, 999)))[-1]
    assert all(abs(batch - its) <= 3 for batch, its in zip(last, end, strict=True))


def test_lb_bsp_gives_five_samples_a_time_from_the_slowest_to_the_fastest() -> None:
    splits = asked("LB-BSP", Given(300, (999, 999, 999)))
    assert list(islice(splits, 3)) == [(100, 100, 100), (105, 100, 95), (110, 100, 90)]


@pytest.mark.parametrize("kind", [RuleMachine, AtLimits, WithLinks])
@pytest.mark.parametrize("seed", [2, 11])
def test_the_best_is_that_of_all_splits(kind: type[RuleMachine], seed: int) -> None:
    """Of up to three devices, each split whose batches are multiples of 8 is tried."""
    machine = next(m for m in map(kind, range(seed, 99)) if len(m.devices) == 2)
    batch = known(machine.wanted.global_batch)
    sizes = [range(limit_of(device) + 1) for device in machine.devices]
    best = 0.0
    for split in product(*sizes):
        if sum(split) == batch:
            used = [number for number, size in enumerate(split) if size]
            devices = [machine.devices[number] for number in used]
            times = [
                machine.time_s(d, split[n], split[n])
                for d, n in zip(devices, used, strict=True)
            ]
            best = max(best, batch / (max(times) + machine.sync_s(used)))
    assert best_rate(machine) == pytest.approx(best)


def test_ours_leaves_out_the_published_card_that_costs_more_than_it_adds() -> None:
    found = ends(Published(0))
    assert found["gpubalance"].of_best > 0.995
    assert all(found["gpubalance"].of_best >= found[name].of_best for name in RULES)


def test_ours_finds_three_devices_of_four_after_pairs_that_were_in_vain() -> None:
    """Each of this machine's devices has a sync of its own; all pairs give less than all four."""
    assert ends(WithLinks(943))["gpubalance"].of_best > 0.99
