"""The search for what fits returns exactly that, whatever the memory function is, in few tries."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubalance.planning.search import Grid, Limit, TriedBatch, find_limit
from tests.support.cases import cases
from tests.support.known import known
from tests.support.memory_functions import (
    MOST,
    SHAPES,
    Case,
    by_prediction,
    case,
    joined,
)

MIB = 1 << 20
randoms = st.integers(0, 2**64).map(Random)
limits = st.integers(1, 10**6)
multiples = st.sampled_from([1, 2, 8, 30])
# The figures of tries below are measured, not proven as the bound is: examples stay the same.
measured = settings(derandomize=True, max_examples=200)


def failures(limit: Limit) -> int:
    return sum(not trial.fits for trial in limit.trials)


def hold_ends(case: Case, limit: Limit) -> None:
    """Asserts that both ends were run with the claimed outcomes, and are neighbours.

    Only `fails` may have been tried twice.
    """
    tried = {trial.batch: trial.fits for trial in limit.trials}
    repeated = [trial.batch for trial in limit.trials if trial.batch == limit.fails]
    assert len(limit.trials) - len(tried) == max(0, len(repeated) - 1) <= 1
    assert not set(tried) & {batch for batch, _ in case.points}
    assert limit.fits is None or tried.get(limit.fits, limit.fits in dict(case.points))
    if limit.fails is None:
        assert limit.fits == Grid(case.multiple).batch(Grid(case.multiple).rung(MOST))
    else:
        assert tried[limit.fails] is False
        assert joined(case, limit)


def found(shape: str, random: Random, limit: int, multiple: int, slope: int) -> Limit:
    on = case(shape, random, limit=limit, multiple=multiple, slope=slope)
    result = by_prediction(on)
    hold_ends(on, result)
    return result


@given(randoms, st.integers(2, 10**6), multiples, st.integers(1, 1 << 32))
def test_linear_memory_takes_at_most_4_tries_and_one_failure(
    random: Random, limit: int, multiple: int, slope: int
) -> None:
    result = found("linear", random, limit, multiple, slope)
    assert result.fits == Grid(multiple).batch(Grid(multiple).rung(limit))
    assert len(result.trials) <= 4
    assert failures(result) == 1


@cases("shape", "rounded", "rounded_parts", "convex", "falling", "doubling")
@measured
@given(randoms, limits, multiples, st.integers(1 << 10, 1 << 32))
def test_other_memory_takes_at_most_8_tries(
    shape: str, random: Random, limit: int, multiple: int, slope: int
) -> None:
    """Where a buffer doubles cannot be foretold.

    On finer grids it takes as many tries as bisection does.
    """
    limit = Grid(multiple).batch(1 + limit % 16) if shape == "doubling" else limit
    slope = max(slope, 4 * MIB) if shape.startswith("rounded") else slope
    result = found(shape, random, limit, multiple, slope)
    assert len(result.trials) <= 8
    assert shape != "convex" or result.fits == Grid(multiple).batch(
        Grid(multiple).rung(limit)
    )


@given(
    randoms, limits, multiples, st.sampled_from(sorted(SHAPES)), st.integers(1, 1 << 32)
)
def test_no_memory_breaks_the_bound(
    random: Random, limit: int, multiple: int, shape: str, slope: int
) -> None:
    assert len(found(shape, random, limit, multiple, slope).trials) <= bound(MOST)


@cases("limit, failed, tries", (900, 1034, 15), (10**9, None, 20))
def test_memory_that_always_promises_one_more_misleads_for_five_tries(
    limit: int, failed: int | None, tries: int
) -> None:
    """Between 10 and 1034 samples bisection takes ten tries; up to 10,000 doubling takes 14."""
    memory = 10**9
    before, peak = 10, memory // 2
    tried = []

    def try_batch(batch: int, _: str) -> TriedBatch:
        nonlocal before, peak
        tried.append(batch)
        if batch > limit:
            return TriedBatch(batch, False, memory + 1)
        apart = batch - before
        before, peak = batch, (memory * apart + peak) // (apart + 1)
        return TriedBatch(batch, True, peak)

    points = [(before, peak)]
    find_limit(try_batch, points, memory_bytes=memory, max_batch=10**4, failed=failed)
    assert tried[:5] == [20, 21, 22, 23, 24]
    assert len(tried) == tries


def bound(rungs: int) -> int:
    return 2 * (rungs - 1).bit_length() + 12


@given(st.integers(1, 5000), multiples, st.data())
def test_any_answers_whatever_end_within_the_bound_at_neighbours(
    top: int, multiple: int, data: st.DataObject
) -> None:
    """JointMemorySearch, memory and points are random: nothing is monotone.

    What failed may fit if it is tried again.
    """
    memory = data.draw(st.none() | st.integers(0, 10**6))
    batches = st.integers(1, 2 * top)
    points = data.draw(st.dictionaries(batches, st.integers(0, 10**6), max_size=5))
    tried: dict[int, bool] = {}
    again: list[bool] = []

    def try_batch(batch: int, _: str) -> TriedBatch:
        assert not tried.get(batch)
        assert batch not in points
        assert batch <= top
        assert Grid(multiple).has(batch)
        fits = data.draw(st.booleans())
        if batch in tried:
            again.append(fits)
        tried[batch] = fits
        return TriedBatch(
            batch, tried[batch], data.draw(st.none() | st.integers(0, 10**6))
        )

    result = find_limit(
        try_batch,
        sorted(points.items()),
        memory_bytes=memory,
        max_batch=top,
        multiple=multiple,
    )
    grid = Grid(multiple)
    assert result.fits is None or tried.get(result.fits, result.fits in points)
    if result.fails is None:
        assert grid.rung(result.fits or 0) == grid.rung(top)
    else:
        assert tried[result.fails] is False
        assert grid.rung(result.fails) - grid.rung(result.fits or 0) == 1
    assert len(tried) <= (bound(top) + top.bit_length() + 5) * (1 + sum(again))


@given(st.integers(0, 3000), st.integers(1, 3000), multiples)
def test_without_known_memory_it_is_exact(limit: int, top: int, multiple: int) -> None:
    grid = Grid(multiple)
    result = find_limit(
        lambda b, _: TriedBatch(b, b <= limit),
        memory_bytes=None,
        max_batch=top,
        multiple=multiple,
    )
    last = grid.rung(min(limit, top))
    assert result.fits == (grid.batch(last) or None)
    assert result.fails == (None if last == grid.rung(top) else grid.batch(last + 1))


@given(
    randoms,
    limits,
    multiples,
    st.sampled_from(sorted(SHAPES)),
    st.integers(1, 1 << 32),
    st.integers(1, 1 << 20),
)
def test_a_batch_that_is_known_to_fail_is_an_end_and_not_tried_again(
    random: Random, limit: int, multiple: int, shape: str, slope: int, above: int
) -> None:
    on = case(shape, random, limit=limit, multiple=multiple, slope=slope)
    grid = Grid(multiple)
    failed = grid.batch(grid.rung(max(limit, *(b for b, _ in on.points), 1)) + above)
    if on.try_batch(failed).fits:
        return
    result = find_limit(
        on.try_batch,
        on.points,
        memory_bytes=on.memory_bytes,
        max_batch=MOST,
        multiple=on.multiple,
        failed=failed,
    )
    assert (
        failed not in {trial.batch for trial in result.trials} or failed == result.fails
    )
    tried = (
        {trial.batch: trial.fits for trial in result.trials}
        | {failed: False}
        | dict.fromkeys(dict(on.points), True)
    )
    assert joined(on, result)
    assert tried[known(result.fails)] is False
    assert result.fits is None or tried[result.fits]


class Once:
    """A case in which the try with that number, counted from 0, fails by chance."""

    def __init__(self, on: Case, number: int) -> None:
        self._on = on
        self._left = number

    def __call__(self, batch: int, _: str) -> TriedBatch:
        self._left -= 1
        return (
            self._on.try_batch(batch) if self._left != -1 else TriedBatch(batch, False)
        )


@given(randoms, limits, multiples, st.integers(1, 1 << 32), st.integers(0, 2))
def test_a_failure_that_linear_memory_contradicts_is_tried_again(
    random: Random, limit: int, multiple: int, slope: int, number: int
) -> None:
    on = case("linear", random, limit=limit, multiple=multiple, slope=slope)
    result = by_prediction(on, Once(on, number))
    assert result.fits == Grid(multiple).batch(Grid(multiple).rung(limit))


@given(
    randoms,
    limits,
    multiples,
    st.sampled_from(sorted(set(SHAPES) - {"falling"})),
    st.integers(0, 40),
)
def test_without_memory_one_failure_by_chance_changes_no_limit(
    random: Random, limit: int, multiple: int, shape: str, number: int
) -> None:
    on = replace(
        case(shape, random, limit=limit, multiple=multiple, slope=1 << 20), known=False
    )
    result = by_prediction(on, Once(on, number))
    quiet = by_prediction(on)
    assert (result.fits, result.fails) == (quiet.fits, quiet.fails)
    assert len(quiet.trials) - len({trial.batch for trial in quiet.trials}) == 1


@cases(
    "fits, per_sample, points, memory, maximum, multiple, wanted, tries",
    (0, 900, (), 500, 100, 8, (None, 1), 1),  # nothing
    (5, 10, (), 55, 100, 8, (5, 6), None),  # below the multiple every batch counts
    # No limit up to the largest
    (1000, 10, (8, 16, 32), 10**9, 1000, 8, (1000, None), 1),
    # A point that is no multiple is no end
    (23, 100, (5, 10, 20), 2399, 999, 8, (16, 24), 2),
    # A failure without a word of memory
    (77, 10, (4, 8, 16), 2000, 4096, 1, (77, 78), None),
)
def test_the_ends(
    fits: int,
    per_sample: int,
    points: tuple[int, ...],
    memory: int,
    maximum: int,
    multiple: int,
    wanted: tuple[int | None, int | None],
    tries: int | None,
) -> None:
    def try_batch(batch: int, _: str) -> TriedBatch:
        return TriedBatch(
            batch,
            batch <= fits,
            per_sample * batch if batch <= fits or not fits else None,
        )

    of = [(batch, per_sample * batch) for batch in points]
    result = find_limit(
        try_batch, of, memory_bytes=memory, max_batch=maximum, multiple=multiple
    )
    assert (result.fits, result.fails) == wanted
    assert tries in (None, len(result.trials))


def test_other_errors_pass_through() -> None:
    def try_batch(batch: int, _: str) -> TriedBatch:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_limit(try_batch, memory_bytes=1, max_batch=10)


@given(
    randoms, limits, st.sampled_from(sorted(SHAPES)), st.integers(1, 1 << 30), st.data()
)
def test_trials_sent_again_lead_to_the_same_limit(
    random: Random, limit: int, shape: str, slope: int, data: st.DataObject
) -> None:
    on = case(shape, random, limit=limit, multiple=1, slope=slope)
    whole = by_prediction(on)
    journal = list(whole.trials[: data.draw(st.integers(0, len(whole.trials)))])

    def resumed(batch: int, _: str) -> TriedBatch:
        return journal.pop(0) if journal else on.try_batch(batch)

    seen = find_limit(resumed, on.points, memory_bytes=on.memory_bytes, max_batch=MOST)
    assert seen == whole
    assert not journal


def test_each_try_says_why() -> None:
    def reasons(
        points: list[tuple[int, int]],
        memory_bytes: int | None,
        failed: int | None = None,
    ) -> list[str]:
        told: list[str] = []

        def try_batch(batch: int, reason: str) -> TriedBatch:
            told.append(f"{batch}: {reason}")
            return TriedBatch(batch, batch <= 100 and batch != failed, 100 + 10 * batch)

        find_limit(
            try_batch, points, memory_bytes=memory_bytes, max_batch=10**6, failed=failed
        )
        return told

    predicted = [
        "100: the memory of 3 batches predicts 100",
        "101: the smallest that should fail",
    ]
    assert reasons([(b, 100 + 10 * b) for b in (8, 16, 32)], 1105) == predicted
    doubted = reasons([(b, 100 + 10 * b) for b in (24, 48, 97, 98)], 1105, failed=99)
    assert doubted == ["99: once more, as memory predicts 100"]
    assert reasons([(1, 0)], None, failed=2) == [
        "2: once more, to be sure: 1 fits, 2 does not"
    ]
    ends = ["98: 97 fits, 103 does not", "99: 98 fits, 103 does not"]
    assert reasons([(97, 0)], None, failed=103)[:2] == ends
    afar = reasons([(40, 600), (60, 820)], 1105)
    cautious = "103: the memory of 3 batches predicts 114; a safe step towards it"
    assert afar[1:3] == [cautious, "91: 85 fits, 103 does not"]


@cases(
    "points, memory_bytes, failed, tries",
    # Half of the way where memory is unknown, and one by one at the end
    ([(80, 0)], None, 130, [105, 92, 98, 101, 99, 100, 101]),
    ([], None, None, [1, 2, 4, 8, 16, 32, 64, 128, 96, 112, 104, 100, 101, 101]),
    # A third of the way where it tells too little
    ([(40, 600)], 3000, None, [200, 93, 128, 104, 96, 98, 99, 100, 101, 101]),
    ([(40, 600)], 1105, None, [73, 112, 86, 96, 100, 101]),
    ([], 1105, None, [1, 10, 100, 101]),
)
def test_which_batches_are_tried_by_hand(
    points: list[tuple[int, int]],
    memory_bytes: int | None,
    failed: int | None,
    tries: list[int],
) -> None:
    """Up to 100 samples fit, of 10 bytes each and 100 more."""

    def try_batch(batch: int, _: str) -> TriedBatch:
        return TriedBatch(batch, batch <= 100, 100 + 10 * batch)

    found = find_limit(
        try_batch, points, memory_bytes=memory_bytes, max_batch=10**6, failed=failed
    )
    assert [trial.batch for trial in found.trials] == tries


def test_close_ends_will_do_once_four_tries_found_no_neighbours() -> None:
    """On a fake GPU TensorFlow's allocator packed ever more tightly: 22 tries of 20 s.

    Up to 156,000 samples a sample took 11,700 bytes, beyond that hardly any.
    """
    usable, maximum = 1_832_910_848, 160_003
    points = [(n, 33 * 10**6 + 11_700 * n) for n in (8192, 32768)]

    def try_batch(batch: int, _: str) -> TriedBatch:
        held = min(33 * 10**6 + 11_700 * batch, usable - 10**6)
        return TriedBatch(batch, batch <= maximum, held if batch <= maximum else None)

    def found(within: float = 0.0) -> Limit:
        return find_limit(
            try_batch,
            points,
            memory_bytes=usable,
            max_batch=MOST,
            multiple=8,
            within=within,
        )

    exact = found()
    assert (exact.fits, exact.fails) == (160_000, 160_008)
    close = found(0.04)
    fits, fails = known(close.fits), known(close.fails)
    assert fits <= 160_000 < fails <= 1.041 * fits
    assert len(close.trials) <= 7 < len(exact.trials)
    # Two tries find neighbours where memory tells them.
    line = case("linear", Random(1), limit=1000, multiple=8, slope=1 << 20)
    both = [
        find_limit(
            line.try_batch,
            line.points,
            memory_bytes=line.memory_bytes,
            max_batch=MOST,
            multiple=8,
            within=within,
        )
        for within in (0.0, 0.04)
    ]
    assert both[0] == both[1]
    assert joined(line, both[1])


@given(st.integers(1, 5000), multiples, st.data())
def test_any_answers_end_at_ends_that_are_close(
    top: int, multiple: int, data: st.DataObject
) -> None:
    memory = data.draw(st.none() | st.integers(0, 10**6))
    result = find_limit(
        lambda batch, _: TriedBatch(
            batch,
            data.draw(st.booleans()),
            data.draw(st.none() | st.integers(0, 10**6)),
        ),
        memory_bytes=memory,
        max_batch=top,
        multiple=multiple,
        within=0.04,
    )
    if result.fails is not None:
        rung = Grid(multiple).rung
        low, high = rung(result.fits or 0), rung(result.fails)
        assert 0 < high - low <= max(1, 0.04 * low)


def test_a_search_ends_once_what_it_found_is_enough() -> None:
    """Then the largest that fits has no neighbour that fails; what fails before does not end it."""
    tried: list[int] = []

    def try_batch(batch: int, _: str) -> TriedBatch:
        tried.append(batch)
        return TriedBatch(batch, batch <= 900, None)

    found = find_limit(
        try_batch,
        [(64, 0)],
        memory_bytes=None,
        max_batch=1 << 20,
        is_enough=lambda: len(tried) >= 2,
    )
    assert tried == [128, 256]
    assert (found.fits, found.fails) == (256, None)
