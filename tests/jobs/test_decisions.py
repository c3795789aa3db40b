"""`balance` ends with the best that it proved, on machines whose times are drawn.

The machines are those of tests/support/machines.py.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from gpubalance.errors import Interrupted, OutOfMemory
from gpubalance.jobs.events import Doing, Event
from gpubalance.results.plan import Plan, Round
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from tests.jobs.probes import done, proof_of
from tests.render.golden import told
from tests.support.cases import cases
from tests.support.known import known
from tests.support.machines import Machine
from tests.support.outcomes import outcome


@pytest.fixture(scope="module")
def twice() -> Machine:
    """A machine on which the best split of the rounds loses in its proof.

    So another split is proven after it.
    """
    return Machine(12, 0.03)


@cases("seed, off", (0, 0.02), (1, 0.03), (220, 0.03), (249, 0.03), (431, 0.03))
def test_no_balance_ends_below_what_it_could_know(seed: int, off: float) -> None:
    """No balance ends below what it measured nor below what it could know.

    Many more are drawn by `scripts/bench decisions`.

    The last have a size that is faster than a smaller one, once with a global batch; over five
    rounds; and splits that are nearly as fast as each other.
    """
    found = outcome(Machine(seed, off))
    assert found.below_measured <= 0.005
    assert (found.below_optimum or 0.0) <= 0.01
    assert (found.below_known or 0.0) <= 0.01


@cases("seed", 0, 2, 42, 55, 1578)
def test_with_own_links_a_balance_ends_with_the_best_of_all_sets(seed: int) -> None:
    """Many more are drawn by `scripts/bench decisions`.

    The last ones leave out one device, and two; and find the best set in the seventh that is tried.
    """
    assert (outcome(Machine(seed, 0.0, links=True)).below_optimum or 0.0) <= 0.005


class Proofs:
    """Counts the proofs that begin, and raises an error in `times` of them.

    It does so from the `number`-th on, where they tell `at`.
    """

    began = 0
    there = False

    def __init__(
        self,
        number: int,
        error: BaseException | None = None,
        times: int = 1,
        at: str = "window 2",
    ) -> None:
        self._number = number
        self._error = error
        self._times = times
        self._at = at

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Doing):
            return
        self.began += event.text.startswith("proving")
        if self.began >= self._number and self._at in event.text and self._times:
            self.there = True
            self._times -= 1
            if self._error is not None:
                raise self._error


def left_by_an_interrupt(machine: Machine, watch: Proofs) -> Plan:
    with pytest.raises(Interrupted) as raised:
        machine.balanced(watch)
    assert isinstance(raised.value.partial, Plan)
    return raised.value.partial


def test_an_interrupt_in_a_proof_leaves_the_proven_split(twice: Machine) -> None:
    """An interrupt in a proof leaves the split that was proven or else the best so far."""
    left = left_by_an_interrupt(twice, Proofs(2, KeyboardInterrupt()))
    assert proof_of(left).complete
    assert left.batches == proof_of(left).batches
    left = left_by_an_interrupt(twice, Proofs(1, KeyboardInterrupt(), at="proving"))
    assert known(left.balance).run is None
    assert left.batches in [tried.batches for tried in known(left.balance).rounds]
    assert "not yet proven by a run" in " ".join(told(left).split())


@cases("number", 1, 2)
def test_a_proof_that_runs_out_of_memory_leaves_what_was_proven(number: int) -> None:
    """A proof that runs out of memory steps back and leaves what was proven.

    On a GPU the allocator may fail late. Two proofs of a split do, as one might be chance.

    This machine proves two splits, and the first one again if its proof fails.
    """
    proofs = Proofs(number, OutOfMemory("GPU:0 ran out of memory", replica=0), times=2)
    ended = Machine(19, 0.03).balanced(proofs)
    assert proofs.there
    rounds = known(ended.balance).rounds
    (failed,) = [tried for tried in rounds if tried.outcome == "oom"]
    assert ended.batches == proof_of(ended).batches != failed.batches
    assert number == 2 or ended.batches[0] < failed.batches[0]


class FirstIsSlow(Machine):
    def offset(self, device: Device, _: int) -> float:
        return 1.5 if device.index == 0 else 1.0


def test_a_device_that_slows_down_in_a_proof_is_proven_again() -> None:
    """A device that slows down while it is proven is planned and proven again."""
    slow = FirstIsSlow(2, 0.0)
    proofs = Proofs(1)
    ended = Machine(2, 0.0).balanced(
        proofs, lambda *of: slow.offset(*of) if proofs.there else 1.0
    )
    assert proofs.began > 1
    rate = slow.rate(ended.split)
    assert rate >= 0.995 * slow.rate(slow.balanced().split)
    assert proof_of(ended).throughput.median == pytest.approx(rate, rel=0.01)
    (warning,) = [one for one in ended.warnings if one.code == "throttled"]
    # No card that gets hot: it is simulated
    assert "close other programs" in warning.next


class Busy:
    """Other work beside a balance, which comes and goes.

    It changes the devices' speed every so many steps.
    """

    def __init__(self, seed: int) -> None:
        self.rounds_before: list[BatchSplit] = []  # a proof
        self.lines: list[str] = []
        self._random = Random(seed)
        self._factor = 1.0
        self._left = 0
        self._proving = False

    def watch(self, event: Event) -> None:
        if isinstance(event, Doing):
            self._proving |= event.text.startswith("proving")
            self.lines += [event.text] if "not steady" in event.text else []
        elif not self._proving:
            self.rounds_before += [one.record.split for one in done([event], Round)]

    def offset(self, device: Device, size: int) -> float:
        del device, size
        self._left -= 1
        if self._left < 0:
            self._factor = self._random.lognormvariate(0, 0.3)
            self._left = self._random.randint(5, 400)
        return self._factor


@pytest.mark.full
def test_on_a_busy_machine_the_median_of_three_rounds_counts() -> None:
    """On a busy machine a split is measured three times before the proof and its median counts.

    Two of these machines measure a split three times; two tell that they are not steady.
    """
    maximum: list[int] = []
    told = 0
    for seed in (1, 3, 41, 47):
        busy = Busy(seed)
        made = Machine(seed, 0.0).balanced(busy.watch, busy.offset)
        assert proof_of(made)
        maximum.append(max(Counter(busy.rounds_before).values()))
        assert len(busy.lines) <= 1
        told += len(busy.lines)
        for line in busy.lines:
            assert any(str(tried.split) in line for tried in known(made.balance).rounds)
            (warning,) = [one for one in made.warnings if one.code == "not-steady"]
            assert warning.message == line
    assert max(maximum) == 3, maximum
    assert told
