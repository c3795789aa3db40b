"""How a split that trains follows drawn devices: what that costs, and when the split changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from gpubalance.planning.follow import Rebalancer
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, DeviceProfile, JointProfile
from scripts.benches.wanted import Wanted, judged
from tests.cli.program import ROOT
from tests.jobs.drawn import noisy_devices
from tests.jobs.probes import devices_of, of_config
from tests.support.drawn_training import (
    DrawnTraining,
    drawn_pair,
    gain_of,
    planned_samples,
    taken_s,
)

_CONFIG = "throttling"
_HOT_S = 20  # from then on the first card takes longer, by this factor
_FACTORS = (1.4286, 1.0)
_EVERY = 50
_STAMPED = 10  # steps until the split is near the best
_STEPS = 10_000
_SEEDS = 5
_NOISE = 0.05
_CORRELATION = 0.7
_EVEN = BatchSplit((100, 100))
_LIMIT = 864  # what each card holds
_PAIRS = 100
_HELD = 50  # what each of these holds


def main() -> Iterator[str]:
    """The cost, the changes by noise, and how near the best a split comes."""
    devices, joint = of_config(_CONFIG)
    noisy, _ = noisy_devices(ROOT / "configs" / f"{_CONFIG}.toml", _NOISE)
    cool = (devices[1],) * 2
    for name, pair in (("steady", cool), ("noise of 5 %", (noisy[1],) * 2)):
        figure = judged(_costs(pair, joint), Wanted(maximum=0.5), 24)
        yield f"what the rule takes while nothing changes, in % of a step, {name}: {figure}"
    for correlation in (0.0, _CORRELATION):
        changes = 0
        for seed in range(_SEEDS):
            training = DrawnTraining(
                (noisy[1],) * 2, joint, _EVEN, seed=seed, correlation=correlation
            )
            training.train(_STEPS)
            changes += len(training.changes)
        verdict = "missed" if changes else "met"
        yield (
            f"noise of 5 %, ρ {correlation:g}: {changes} changes in {_SEEDS} × {_STEPS} stamped "
            f"steps; wanted none: {verdict}"
        )
    yield from _micro_batches_kept(joint)
    for limit in (None, _HELD):
        yield from _gains(joint, limit)
    yield from _waited(devices, joint)
    for batch in (200, 800, 1600, 3200):
        yield _throttled(devices, joint, batch)


def _costs(devices: Sequence[Device], joint: JointProfile) -> Iterator[float]:
    """The rule's seconds after a stamped step, in % of those of the steps from one to the next."""
    seed = 0
    while True:
        drawn = DrawnTraining(
            devices, joint, _EVEN, rebalance=False, seed=seed, correlation=_CORRELATION
        )
        follower = Rebalancer([None] * len(devices))
        computed_s = 0.0
        for number in range(300):
            drawn.train(1)
            began_s = time.process_time()
            follower.note(number, drawn.last)
            computed_s += time.process_time() - began_s
        yield 100 * computed_s / drawn.took_s / _EVERY
        seed += 1


def _micro_batches_kept(joint: JointProfile) -> Iterator[str]:
    """The changes of a split that is the best by its micro-batches, though a device waits."""
    for noise in (0.0, _NOISE):
        cards = []
        for alpha_s in (0.02, 0.03):
            card = DeviceProfile(
                name="card", alpha_s=alpha_s, beta_s=0.0001, noise=noise
            )
            cards.append(card)
        split = BatchSplit((600, 400), (200, 200))
        training = DrawnTraining(
            devices_of(*cards),
            joint,
            split,
            limits=(200, 200),
            correlation=_CORRELATION,
        )
        training.train(_STEPS)
        verdict = "missed" if training.changes else "met"
        yield (
            f"{split}, noise of {100 * noise:g} %, ρ {_CORRELATION:g}: {len(training.changes)} "
            f"changes in {_STEPS} stamped steps; wanted none: {verdict}"
        )


def _gains(joint: JointProfile, limit: int | None) -> Iterator[str]:
    """Of changes from an even split, how many truly gain less than they should."""
    start = _EVEN if limit is None else BatchSplit(_EVEN.batches, (limit, limit))
    for is_planned in (True, False):
        gains = []
        for seed in range(_PAIRS):
            devices = drawn_pair(seed)
            samples = planned_samples(devices) if is_planned else ()
            training = DrawnTraining(
                devices, joint, start, limits=(limit, limit), fixed_samples=samples
            )
            training.train(200)
            gains += [gain_of(devices, joint, change) for change in training.changes]
        below = sum(gain < 1.02 for gain in gains)
        what = "by a plan" if is_planned else "by hand"
        yield (
            f"{start} on {_PAIRS} drawn pairs, {what}: {below} of {len(gains)} changes gain less than "
            f"2 %, at least {min(gains) - 1:.1%}"
        )


def _waited(devices: Sequence[Device], joint: JointProfile) -> Iterator[str]:
    """How many stamped steps pass between the slowdown and the first change, by noise."""
    for noise, correlation in (
        (0.01, 0.0),
        (0.02, _CORRELATION),
        (_NOISE, 0.0),
        (_NOISE, 0.7),
    ):
        changed = []
        for seed in range(_SEEDS):
            noisy, _ = noisy_devices(ROOT / "configs" / f"{_CONFIG}.toml", noise)
            training = DrawnTraining(
                noisy, joint, _EVEN, seed=seed, correlation=correlation
            )
            training.train_until(_HOT_S)
            slow_from = training.steps
            while not training.changes:
                training.train(1)
            changed.append(training.changes[0].step - slow_from)
        counts = ", ".join(map(str, sorted(changed)))
        yield (
            f"noise of {100 * noise:g} %, ρ {correlation:g}: first change {counts} stamped steps after "
            "the first card slowed"
        )


def _in_pieces(*batches: int) -> BatchSplit:
    """Each batch in the fewest micro-batches that a card holds."""
    sizes = [-(-batch // -(-batch // _LIMIT)) for batch in batches]
    return BatchSplit(batches, tuple(sizes))


def _throttled(devices: Sequence[Device], joint: JointProfile, batch: int) -> str:
    """How near the best the split is ten stamped steps after the first card has slowed down."""
    multiple = 8 if batch > 200 else 1
    training = DrawnTraining(
        devices,
        joint,
        _in_pieces(batch // 2, batch // 2),
        limits=(_LIMIT, _LIMIT),
        multiple=multiple,
        every=_EVERY,
    )
    training.train_until(_HOT_S)
    training.train(_STAMPED * _EVERY)
    held = batch if batch > 2 * _LIMIT else _LIMIT  # in micro-batches
    firsts = range(max(multiple, batch - held), min(batch, held + 1), multiple)
    splits = [_in_pieces(first, batch - first) for first in firsts]
    best_s = min(taken_s(devices, joint, split, _FACTORS) for split in splits)
    of_best = best_s / taken_s(devices, joint, training.split, _FACTORS)
    course = ", ".join(str(change.after) for change in training.changes)
    verdict = "met" if of_best >= 0.97 else "missed"
    return (
        f"{_CONFIG}.toml at {batch}, {_STAMPED} stamped steps after it slowed: {course}, "
        f"{of_best:.3f} of the best; wanted at least 0.97: {verdict}"
    )
