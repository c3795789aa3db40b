"""When a split that trains changes, on drawn devices with the product's own rule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest

from gpubalance.planning.follow import Rebalancer, SplitChange
from gpubalance.planning.model import Curve, fixed_samples
from gpubalance.planning.parts import StepTimes
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, DeviceProfile, DriftPoint, JointProfile
from tests.jobs.probes import devices_of, of_config
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.drawn_training import (
    DrawnTraining,
    drawn_pair,
    gain_of,
    planned_samples,
    taken_s,
)
from tests.support.known import known

JOINT = JointProfile(sync_s=0.008)
CARD = DeviceProfile(name="card", alpha_s=0.01, beta_s=0.0004)
HOT = 1 / 0.7
EVEN = BatchSplit((100, 100))


def drifting(card: DeviceProfile, *drift: tuple[float, float]) -> DeviceProfile:
    """The card which from these seconds on takes so many times as long."""
    points = [DriftPoint(from_s=from_s, factor=factor) for from_s, factor in drift]
    return altered(card, drift=tuple(points))


def pair(
    drift: Sequence[tuple[float, float]] = (), noise: float = 0.0
) -> tuple[Device, ...]:
    """Two equal cards, of which the first changes its speed."""
    cool = altered(CARD, noise=noise)
    return devices_of(drifting(cool, *drift), cool)


def step(split: BatchSplit, *compute_s: float) -> StepTimes:
    """A step of two devices without update and sync."""
    return StepTimes(compute_s, (0.0, 0.0), split, 0.0)


def first_change(follower: Rebalancer, taken: StepTimes) -> tuple[int, SplitChange]:
    """After which of equal steps, counted from 0, the split changes, and how."""
    for number in itertools.count():
        change = follower.note(number, taken)
        if change is not None:
            return number, change
    raise AssertionError


def best_step_s(
    devices: Sequence[Device], factors: Sequence[float], batch: int
) -> float:
    """The least that a step of two devices takes, by brute force."""
    splits = [BatchSplit((first, batch - first)) for first in range(1, batch)]
    return min(taken_s(devices, JOINT, split, factors) for split in splits)


def trained(training: DrawnTraining, seconds: float) -> DrawnTraining:
    training.train_until(seconds)
    return training


def true_gain(training: DrawnTraining, devices: Sequence[Device], steps: int) -> float:
    """What the even split would have taken since the first change, over what was taken."""
    took_s = in_first_s = 0.0
    for _ in range(steps):
        began_s = training.took_s
        training.train(1)
        if training.changes:
            factor = known(devices[0].profile).drift_at(began_s)
            in_first_s += taken_s(devices, JOINT, EVEN, (factor, 1.0))
            took_s += training.took_s - began_s
    return in_first_s / took_s


@cases("every", 1, 50)
def test_ten_stamped_steps_after_a_throttle_the_split_is_good(every: int) -> None:
    devices, joint = of_config("throttling")
    factors = (1.4286, 1.0)
    training = trained(DrawnTraining(devices, joint, EVEN, every=every), 20)
    assert not training.changes
    training.train(10 * every)
    best_s = best_step_s(devices, factors, 200)
    assert best_s > 0.97 * taken_s(devices, joint, training.split, factors)
    # A median of hot and cool steps would go beyond the best, which is 78/122, and back.
    training.train(20 * every)
    batches = [change.after.batches for change in training.changes]
    assert batches == [(82, 118), (78, 122)]
    assert training.changes[0].slowdown == pytest.approx(factors, rel=1e-6)
    gain = taken_s(devices, joint, EVEN, factors) / best_s
    assert training.follower.gain == pytest.approx(gain, rel=0.01)


def test_after_a_throttle_and_a_recovery_the_split_is_as_before() -> None:
    """A line through hot and cool times would stay at 97/103."""
    training = DrawnTraining(pair([(5, HOT), (15, 1.0)]), JOINT, EVEN)
    assert trained(training, 14).split.batches == (78, 122)
    assert trained(training, 30).split.batches == (100, 100)
    assert len(training.changes) == 3


def test_the_split_is_as_before_where_most_of_a_step_is_a_fixed_cost() -> None:
    """At one sample of its batch, one more is not half of a device's time."""
    cool = altered(CARD, alpha_s=0.04, beta_s=0.0001)
    devices = devices_of(drifting(cool, (3, 3.0), (20, 1.0)), cool)
    training = DrawnTraining(devices, JOINT, EVEN)
    assert trained(training, 19).split.batches == (1, 199)
    assert trained(training, 40).split.batches == (100, 100)


@cases("factor, every", (1.3, 1), (1.7, 1), (1.7, 3), (1.9, 3))
def test_a_step_in_which_a_card_slows_down_tells_no_fixed_cost(
    factor: float, every: int
) -> None:
    """Half of the first change's steps are cool, so this one is their median.

    Of every third step none was dispatched before the change, so no later step outweighs it.
    """
    card = altered(CARD, alpha_s=0.0, beta_s=0.0005)
    drift = [(5, factor), (5.06, 2.0), (15, 1.0)]
    slowing = drifting(card, *((every * from_s, times) for from_s, times in drift))
    devices = devices_of(slowing, card)
    training = DrawnTraining(devices, JOINT, EVEN, every=every)
    gain = true_gain(training, devices, 500 * every)
    _, *batches = [change.after.batches for change in training.changes]
    assert batches == [(67, 133), (100, 100)]
    assert known(training.follower.gain) == pytest.approx(gain, rel=0.01)


def test_a_throttle_that_comes_and_goes_costs_little() -> None:
    """By an epoch's median it was at times slower than no change at all."""
    times = [(3.0 * number, HOT if number % 2 else 1.0) for number in range(1, 20)]
    factors = {1.0: (1.0, 1.0), HOT: (HOT, 1.0)}
    devices = pair(times)
    steps = 900
    trainings = []
    for rebalance in (True, False):
        training = DrawnTraining(devices, JOINT, EVEN, rebalance=rebalance)
        training.train(steps)
        trainings.append(training)
    followed, untouched = trainings
    best_s = sum(best_step_s(devices, both, 200) for both in factors.values()) / 2
    assert untouched.took_s / followed.took_s > 1.06
    assert followed.took_s < 1.03 * steps * best_s
    assert known(followed.follower.gain) > 1.06


def test_batches_stay_multiples_and_within_what_devices_hold() -> None:
    # The cool card holds 864: 496/704 is the best of 1200, and of 1520 it is beyond that.
    devices, joint = of_config("throttling")
    for batch, best in ((1200, (496, 704)), (1520, (656, 864))):
        split = BatchSplit.even(batch, 2)
        training = DrawnTraining(devices, joint, split, limits=(864, 864), multiple=8)
        training.train_until(20)
        training.train(40)
        assert training.split.batches == best
        for change in training.changes:
            assert not any(size % 8 for size in change.after.batches)


def least_compute_s(device: Device, batch: int, limit: int) -> float:
    """The least that so many samples take, at most `limit` at a time, by brute force."""
    sizes = range(1, min(batch, limit) + 1)
    return min(known(device.profile).compute_s(batch, size) for size in sizes)


@cases("noise", 0.0, 0.01)
def test_a_steady_machine_keeps_its_micro_batches(noise: float) -> None:
    """A device waits, but a further micro-batch on it would cost more than the wait."""
    slow = altered(CARD, alpha_s=0.03, beta_s=0.0001, noise=noise)
    cards = (altered(slow, alpha_s=0.02), slow)
    split = BatchSplit((600, 400), (200, 200))
    how: Any = {"limits": (200, 200), "correlation": 0.7}
    training = DrawnTraining(devices_of(*cards), JOINT, split, **how)
    training.train(150)
    assert not training.changes


def test_micro_batches_follow_a_throttle_and_come_back() -> None:
    """Half of a micro-batch's time is a fixed cost: not by its samples does it shrink."""
    card = altered(CARD, alpha_s=0.04)
    devices = devices_of(drifting(card, (6, 1.5), (20, 1.0)), card)
    split = BatchSplit((300, 300), (100, 100))
    training = DrawnTraining(devices, JOINT, split, limits=(100, 100))
    trained(training, 6).train(10)
    hot, cool = devices
    best_s = math.inf
    for batch in range(1, 600):
        hot_s = 1.5 * least_compute_s(hot, batch, 100)
        cool_s = least_compute_s(cool, 600 - batch, 100)
        best_s = min(best_s, JOINT.sync_s + max(hot_s, cool_s))
    assert best_s > 0.97 * taken_s(devices, JOINT, training.split, (1.5, 1.0))
    assert trained(training, 40).split == split
    assert len(training.changes) == 3


@cases("start, limit", (EVEN, None), (BatchSplit((100, 100), (50, 50)), 60))
def test_by_a_plan_one_change_is_enough_and_gains_what_it_tells(
    start: BatchSplit, limit: int | None
) -> None:
    """A plan knows fixed costs, so that nothing has to be tried."""
    told: list[float] = []
    for seed in range(4):
        devices = drawn_pair(seed)
        how: Any = {"limits": (limit, limit)}
        how["fixed_samples"] = planned_samples(devices)
        training = DrawnTraining(devices, JOINT, start, **how)
        training.train(60)
        assert len(training.changes) <= 1
        for change in training.changes:
            true = gain_of(devices, JOINT, change)
            assert change.gain == pytest.approx(true, rel=1e-6)
            told.append(change.gain)
    assert len(told) > 1
    assert min(told) >= 1.02


@cases("factor", 0.0, 0.2, 5.0)
def test_what_a_plan_has_wrong_is_learnt_from_the_first_change(factor: float) -> None:
    devices = pair([(5, HOT)])
    alpha_s, beta_s = CARD.alpha_s, CARD.beta_s
    samples = [factor * alpha_s / beta_s] * 2
    training = DrawnTraining(devices, JOINT, EVEN, fixed_samples=samples)
    trained(training, 30)
    assert training.split.batches == pytest.approx((78, 122), abs=1)
    assert len(training.changes) == 2


def test_fixed_costs_are_those_of_the_curve_at_a_size() -> None:
    line = Curve.through([(1, 0.0201), (2, 0.0202)])
    for size in (16, 200):
        assert fixed_samples(line, size) == pytest.approx(200)
    # Up to 64 samples the device waits for its launches; then each takes 0.3 ms.
    knee = Curve.through([(1, 0.02), (64, 0.02), (128, 0.0392)])
    assert fixed_samples(knee, 256) == pytest.approx(0.0776 / 0.0003 - 256)
    # All samples are taken to be a twentieth of a device's time at least.
    assert fixed_samples(knee, 32) == pytest.approx(19 * 32)


def test_a_split_in_one_piece_gets_its_micro_batches_back() -> None:
    """A card that is hot takes what it has left in one piece, and so does the other."""
    cool = altered(CARD, alpha_s=0.001)
    devices = devices_of(cool, drifting(cool, (2, 3.0), (8, 1.0)))
    split = BatchSplit((100, 100), (100, 50))
    training = DrawnTraining(devices, JOINT, split, limits=(160, 50))
    assert not trained(training, 7).split.accumulates
    assert trained(training, 20).split.accumulates
    assert training.split.batches == pytest.approx((100, 100), abs=2)


def test_a_machine_that_is_not_steady_keeps_its_split() -> None:
    devices = pair(noise=0.05)
    for correlation in (0.0, 0.7):
        training = DrawnTraining(devices[1:] * 2, JOINT, EVEN, correlation=correlation)
        training.train(300)
        assert not training.changes


def test_it_waits_twice_as_long_each_time_to_leave_what_is_slower() -> None:
    """Above 112 samples another algorithm takes a fifth longer, which no line can tell.

    Each change is dispatched two steps before it trains.
    """

    def offset(_: Device, size: int) -> float:
        return 1.23 if size > 112 else 1.0

    worse = DrawnTraining(pair([(1, HOT)]), JOINT, EVEN, offset=offset)
    worse.train(140)
    changes = [change.step for change in worse.changes]
    there_and_back = zip(changes[1::2], changes[2::2], strict=False)
    waits = [left - come for come, left in there_and_back]
    assert waits[-4:] == [5 + 2, 10 + 2, 20 + 2, 40 + 2]


def test_however_long_it_would_wait_another_speed_is_followed_at_once() -> None:
    """It would wait for 40 steps; at another speed it waits no longer for a change after that."""

    def offset(_: Device, size: int) -> float:
        return 1.23 if size > 112 else 1.0

    hotter = DrawnTraining(pair([(1, HOT), (8, 3.0)]), JOINT, EVEN, offset=offset)
    began = trained(hotter, 8).steps
    assert began - hotter.changes[-1].step < 40 - 10
    hotter.train(10)
    change, after = hotter.changes[-2:]
    assert change.slowdown == pytest.approx((3 / HOT, 1.0))
    assert change.step <= began + 5
    assert after.step == change.step + 5 + 2


def test_the_gain_is_told_as_soon_as_five_steps_are_stamped() -> None:
    follower = Rebalancer([None, None])
    number, change = first_change(follower, step(EVEN, 0.2, 0.1))
    assert number == 4
    after = step(change.after, 0.134, 0.133)
    gains = []
    learned: list[Any] = []
    follower._costs.learn = lambda *of: learned.append(of)  # type: ignore[method-assign]
    for more in range(5, 10):
        follower.note(more, after)
        gains.append(follower.gain)
    assert gains == [*[None] * 4, pytest.approx(0.2 / 0.134)]
    assert [steps[0].split for steps in learned[-1]] == [EVEN, change.after]


@cases("size, busy_s", (100, (200 + 110 + 20) / 2000), (50, (200 + 5 + 20) / 1500))
def test_the_least_that_a_step_takes_by_hand(size: int, busy_s: float) -> None:
    """The first device has a fixed cost of 100 samples: in one piece 0.1 s of its 0.2 s.

    In pieces of 50 it takes 0.1 s for each, which are 500 samples/s. The other does 1000.
    """
    follower = Rebalancer([size] * 2, fixed_samples=[100, 0])
    split = BatchSplit((100, 100), (size, size))
    taken = StepTimes((0.2, 0.1), (0.01, 0.02), split, 0.05, 0.0)
    follower.note(0, taken)
    assert follower._min_step_s(taken) == pytest.approx(busy_s + 0.05)


def test_smaller_last_batches_and_those_on_their_way_do_not_count() -> None:
    follower = Rebalancer([None, None])
    changes = []
    split = EVEN
    for number in range(60):
        last = number % 4 == 3
        first, second = (10, 30) if last else split.batches
        taken = step(BatchSplit((first, second)), 0.001 * first, 0.003 * second)
        change = follower.note(number, taken)
        if change is not None:
            changes.append(change)
            for _ in range(3):
                assert follower.note(number, taken) is None  # of the old split
            split = change.after
    assert [change.after.batches for change in changes] == [(150, 50)]
    assert changes[0].gain == pytest.approx(2.0)


def test_where_the_global_batch_grows_another_training_begins() -> None:
    """Compute of 200 samples and of 400 say nothing of what a change has made of it."""
    follower = Rebalancer([None, None])
    number, change = first_change(follower, step(EVEN, 0.2, 0.1))
    assert change.after.batches == (67, 133)
    grown = step(BatchSplit((134, 266)), 0.268, 0.266)
    for more in range(1, 30):
        assert follower.note(number + more, grown) is None
    assert follower.gain is None


@cases("rest_s, follows", (0.01, True), (5.0, False))
def test_one_that_waits_for_data_keeps_its_split(rest_s: float, follows: bool) -> None:
    """However unlike the devices become, nobody waits for the slower one."""
    follower = Rebalancer([None, None])
    change = None
    for number in range(1, 60):
        hot_s = 0.1 if number > 20 else 0.05
        taken = StepTimes((hot_s, 0.05), (0.0, 0.0), EVEN, 0.008, rest_s)
        change = change or follower.note(number, taken)
    assert bool(change) == follows
    if change is not None:
        max_s = max(0.1 * change.after.batches[0], 0.05 * change.after.batches[1])
        after_s = max_s / 100 + 0.008 + rest_s
        assert change.gain == pytest.approx((0.108 + rest_s) / after_s, rel=1e-3)


def changed_in(*, cost_s: float, steps_left: int | None, steps: int = 60) -> int:
    """The step in which a follower changes 100/100, of which the first card is twice as slow.

    67/133 takes 0.134 s in place of 0.2 s. 0 without a change; steps are counted from 1000 on.
    """
    follower = Rebalancer([None, None])
    for number in range(1000, 1000 + steps):
        left = None if steps_left is None else steps_left - number + 1000
        taken = step(EVEN, 0.2, 0.1)
        change = follower.note(number, taken, steps_left=left, cost_s=lambda: cost_s)
        if change is not None:
            assert change.after.batches == (67, 133)
            return number
    return 0


def test_a_change_saves_more_than_the_last_one_cost_in_the_steps_left() -> None:
    """Five steps show it, after which 66 ms of each of 96 steps are 6.34 s."""
    assert changed_in(cost_s=0.0, steps_left=100) == 1004
    assert changed_in(cost_s=6.33, steps_left=100) == 1004
    assert changed_in(cost_s=6.35, steps_left=100) == 0
    # In the last step nothing is left to save
    assert changed_in(cost_s=0.0, steps_left=4) == 0


def test_a_training_of_unknown_length_lasts_as_long_again_as_its_split_has() -> None:
    """66 ms of 16 steps are 1.06 s."""
    assert changed_in(cost_s=0.0, steps_left=None) == 1004
    assert changed_in(cost_s=1.0, steps_left=None) == 1016
    assert changed_in(cost_s=1.0, steps_left=None, steps=16) == 0
