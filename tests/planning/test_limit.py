"""The search for what fits returns exactly that, whatever the memory function is, in few tries."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

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
shapes = st.sampled_from(sorted(SHAPES))
# The figures of tries below are measured, not proven as the bound is: examples stay the same.
measured = settings(derandomize=True, max_examples=200)


def on_grid(batch: int, multiple: int) -> int:
    """The largest batch up to this one that is tried."""
    grid = Grid(multiple)
    return grid.batch(grid.rung(batch))


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
        assert limit.fits == on_grid(MOST, case.multiple)
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
    assert result.fits == on_grid(limit, multiple)
    assert len(result.trials) <= 4
    assert sum(not trial.fits for trial in result.trials) == 1


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
    assert shape != "convex" or result.fits == on_grid(limit, multiple)


@given(randoms, limits, multiples, shapes, st.integers(1, 1 << 32))
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


@given(st.integers(1, 5000), multiples, st.sampled_from([0.0, 0.04]), st.data())
def test_any_answers_whatever_end_within_the_bound_at_close_ends(
    top: int, multiple: int, within: float, data: st.DataObject
) -> None:
    """Answers, memory and points are random: nothing is monotone.

    What failed may fit if it is tried again. Without `within` the ends are neighbours.
    """
    asked: Any = {"max_batch": top, "multiple": multiple, "within": within}
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
        peak = data.draw(st.none() | st.integers(0, 10**6))
        return TriedBatch(batch, fits, peak)

    of = sorted(points.items())
    result = find_limit(try_batch, of, memory_bytes=memory, **asked)
    rung = Grid(multiple).rung
    low = rung(result.fits or 0)
    assert result.fits is None or tried.get(result.fits, result.fits in points)
    if result.fails is None:
        assert low == rung(top)
    else:
        assert tried[result.fails] is False
        assert 0 < rung(result.fails) - low <= max(1, within * low)
    assert len(tried) <= (bound(top) + top.bit_length() + 5) * (1 + sum(again))


@given(
    randoms, limits, multiples, shapes, st.integers(1, 1 << 32), st.integers(1, 1 << 20)
)
def test_a_batch_that_is_known_to_fail_is_an_end_and_not_tried_again(
    random: Random, limit: int, multiple: int, shape: str, slope: int, above: int
) -> None:
    on = case(shape, random, limit=limit, multiple=multiple, slope=slope)
    grid = Grid(multiple)
    failed = grid.batch(grid.rung(max(limit, *(b for b, _ in on.points), 1)) + above)
    if on.try_batch(failed).fits:
        return
    result = by_prediction(on, failed=failed)
    tried = {trial.batch: trial.fits for trial in result.trials}
    assert failed not in tried or failed == result.fails
    tried |= {failed: False} | dict.fromkeys(dict(on.points), True)
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
        if self._left == -1:
            return TriedBatch(batch, False)
        return self._on.try_batch(batch)


@given(randoms, limits, multiples, st.integers(1, 1 << 32), st.integers(0, 2))
def test_a_failure_that_linear_memory_contradicts_is_tried_again(
    random: Random, limit: int, multiple: int, slope: int, number: int
) -> None:
    on = case("linear", random, limit=limit, multiple=multiple, slope=slope)
    result = by_prediction(on, Once(on, number))
    assert result.fits == on_grid(limit, multiple)


@given(
    randoms,
    limits,
    multiples,
    shapes.filter(lambda shape: shape != "falling"),
    st.integers(0, 40),
)
def test_without_memory_one_failure_by_chance_changes_no_limit(
    random: Random, limit: int, multiple: int, shape: str, number: int
) -> None:
    made = case(shape, random, limit=limit, multiple=multiple, slope=1 << 20)
    on = replace(made, known=False)
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
        is_told = batch <= fits or not fits
        return TriedBatch(batch, batch <= fits, per_sample * batch if is_told else None)

    of = [(batch, per_sample * batch) for batch in points]
    asked: Any = {"max_batch": maximum, "multiple": multiple}
    result = find_limit(try_batch, of, memory_bytes=memory, **asked)
    assert (result.fits, result.fails) == wanted
    assert tries in (None, len(result.trials))


def test_other_errors_pass_through() -> None:
    def try_batch(batch: int, _: str) -> TriedBatch:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_limit(try_batch, memory_bytes=1, max_batch=10)


@given(randoms, limits, shapes, st.integers(1, 1 << 30), st.data())
def test_trials_sent_again_lead_to_the_same_limit(
    random: Random, limit: int, shape: str, slope: int, data: st.DataObject
) -> None:
    on = case(shape, random, limit=limit, multiple=1, slope=slope)
    whole = by_prediction(on)
    journal = list(whole.trials[: data.draw(st.integers(0, len(whole.trials)))])

    def resumed(batch: int, _: str) -> TriedBatch:
        return journal.pop(0) if journal else on.try_batch(batch)

    assert by_prediction(on, resumed) == whole
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
        "100: predicted limit 100, from 3 batch sizes",
        "101: the smallest batch that should fail",
    ]
    assert reasons([(b, 100 + 10 * b) for b in (8, 16, 32)], 1105) == predicted
    doubted = reasons([(b, 100 + 10 * b) for b in (24, 48, 97, 98)], 1105, failed=99)
    assert doubted == ["99: once more, because the predicted limit is 100"]
    unsure = "2: once more, to be sure: 1 fits, 2 does not"
    assert reasons([(1, 0)], None, failed=2) == [unsure]
    ends = ["98: 97 fits, 103 does not", "99: 98 fits, 103 does not"]
    assert reasons([(97, 0)], None, failed=103)[:2] == ends
    afar = reasons([(40, 600), (60, 820)], 1105)
    cautious = "103: predicted limit 114, from 3 batch sizes; a safe step towards it"
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
    usable = 1_832_910_848

    def memory(batch: int) -> int:
        if batch > 160_003:
            return usable + 1
        return min(33 * 10**6 + 11_700 * batch, usable - 10**6)

    packed = Case(memory, usable, 8, tuple((n, memory(n)) for n in (8192, 32768)))
    exact, close = (by_prediction(packed, within=part) for part in (0.0, 0.04))
    assert (exact.fits, exact.fails) == (160_000, 160_008)
    fits, fails = known(close.fits), known(close.fails)
    assert fits <= 160_000 < fails <= 1.041 * fits
    assert len(close.trials) <= 7 < len(exact.trials)
    # Two tries find neighbours where memory tells them.
    line = case("linear", Random(1), limit=1000, multiple=8, slope=1 << 20)
    neighbours = by_prediction(line, within=0.04)
    assert neighbours == by_prediction(line)
    assert joined(line, neighbours)


def test_a_search_ends_once_what_it_found_is_enough() -> None:
    """Then the largest that fits has no neighbour that fails; what fails before does not end it."""
    tried: list[int] = []

    def try_batch(batch: int, _: str) -> TriedBatch:
        tried.append(batch)
        return TriedBatch(batch, batch <= 900, None)

    on = Case(lambda _: 0, 0, 1, ((64, 0),), known=False)
    found = by_prediction(on, try_batch, is_enough=lambda: len(tried) >= 2)
    assert tried == [128, 256]
    assert (found.fits, found.fails) == (256, None)
