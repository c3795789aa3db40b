"""Which splits get a function of their own sizes, and when."""

from __future__ import annotations

from functools import partial

from gpubalance.settings.batch_split import BatchSplit

MAKING_S = 10.0


class Made:
    """Functions that take ten seconds to make, by a clock that only they and the test move."""

    def __init__(self, *, defers_size_functions: bool = True) -> None:
        from gpubalance.engine.step.several import SizedFunctions

        self.now_s = 0.0
        self.made: list[int] = []
        functions = SizedFunctions(self._make, clock=lambda: self.now_s)
        self._function_of = partial(
            functions.of, defers_size_functions=defers_size_functions
        )
        self._any_has_run = False

    def _make(self, shares: BatchSplit) -> str:
        self.now_s += MAKING_S
        self.made.append(shares.batches[0])
        return f"of {shares.batches[0]}"

    def train(self, first: int, seconds: float) -> list[tuple[str | None, bool]]:
        """The functions of a step a second."""
        found = []
        for _ in range(int(seconds)):
            shares = BatchSplit((first, 100 - first))
            function, is_first = self._function_of(shares)
            found.append((function, is_first))
            if function is None and is_first:
                assert not self._any_has_run
                self._any_has_run = True
                self.now_s += MAKING_S
            self.now_s += 1.0
        return found


def test_the_function_of_any_size_runs_first_and_lasting_splits_get_theirs() -> None:
    made = Made()
    # 10 s for its first run, and a second for each step
    first = made.train(50, MAKING_S + 4)
    waiting = [(None, False)] * 11
    assert first == [(None, True), *waiting, ("of 50", True), ("of 50", False)]
    later = made.train(60, MAKING_S + 4)
    assert later == [*waiting, ("of 60", True)] + [("of 60", False)] * 2


def test_of_two_hundred_changes_none_costs_more_than_it_trains() -> None:
    made = Made()
    made.train(50, 1)
    for change in range(200):
        made.train(1 + change % 99, 5)
    assert not made.made


def test_splits_that_come_back_have_theirs_and_the_one_unused_longest_goes() -> None:
    made = Made()
    for first in (10, 20, 30):
        made.train(first, 2 * MAKING_S)
    assert made.train(10, 1) == [("of 10", False)]
    made.train(40, 2 * MAKING_S)
    assert made.made == [10, 20, 30, 40]
    assert made.train(10, 1) == [("of 10", False)]
    assert made.train(20, 1) == [(None, False)]


def test_what_is_measured_has_its_own_sizes_at_once() -> None:
    made = Made(defers_size_functions=False)
    for first in (10, 20):
        made.train(first, 1)
    assert made.made == [10, 20]
