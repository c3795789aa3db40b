"""What a change of the split costs by the clock, and how many steps are left to save it."""

from __future__ import annotations

from typing import Any

import pytest

from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import DeviceProfile, JointProfile
from gpubalance.training.device_split import ChangeCost, StepsLeft
from gpubalance.training.split import Split
from tests.jobs.probes import devices_of
from tests.support.late import tf
from tests.training.cases import in_split
from tests.training.models import classifier
from tests.training.samples import numbers

EVEN = BatchSplit((50, 50))


def test_a_change_costs_what_first_steps_of_its_split_take_more_than_usual() -> None:
    cost = ChangeCost()
    cost.begin()
    cost.note(30.0, is_first=True)  # the training's own first step
    for took_s in (0.1, 0.3, 0.2):
        cost.note(took_s, is_first=False)
    assert cost.seconds == 0.0
    cost.begin_split()
    cost.note(0.3, is_first=False)  # dispatched before the change
    for took_s, is_first in ((8.25, True), (0.25, False), (2.25, True)):
        cost.note(took_s, is_first=is_first)
    # The medians of 0.1, 0.3, 0.2 and 0.3, and of these and 0.25, are 0.25
    assert cost.seconds == 8.0 + 2.0
    # Another training begins with what is known; its first steps are no change's.
    cost.begin()
    cost.note(30.0, is_first=True)
    assert cost.seconds == 10.0
    cost.begin_split()
    assert cost.seconds == 0.0


def test_the_steps_left_are_of_known_epochs_or_of_the_first_ones_length() -> None:
    left = StepsLeft()
    left.begin_epoch(1)  # of 0, 1 and 2: the first one was trained before
    left.begin_after(1000)
    left.note(1003)
    unknown: dict[str, Any] = {"epochs": 3, "steps": None}
    assert left.left({"epochs": 3, "steps": 10}) == 17
    assert left.left(unknown) is None
    left.note(1008)
    left.end_epoch()
    left.begin_epoch(2)
    left.note(1009)
    assert left.left(unknown) == 7
    left.begin()
    assert left.left(unknown) is None


@pytest.mark.full
def test_a_change_is_not_made_where_too_few_steps_are_left_for_its_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step of 34/66 takes 33 ms less than an even one: 0.7 s in 20 steps."""
    fast = DeviceProfile(name="fast", alpha_s=0.005, beta_s=0.001)
    slow = fast.model_copy(update={"name": "slow", "beta_s": 0.002})
    split = Split.of(devices_of(slow, fast), EVEN, JointProfile())
    with split.scope():
        model = classifier()()
    batches = tf.data.Dataset.from_tensor_slices(numbers(100)).batch(100).repeat()
    changed = []
    for cost_s in (0.0, 1.5):

        def note(cost: ChangeCost, *_: Any, of: float = cost_s, **__: Any) -> None:
            cost.seconds = of

        monkeypatch.setattr(ChangeCost, "note", note)
        split.shares = EVEN
        monitor = split.monitor(every=1, rebalance=True)
        options = {"shuffle": False, "verbose": 0, "callbacks": [monitor]}
        split.fit(model, batches, steps_per_epoch=20, **options)
        changed.append(bool(monitor.changes))
    assert changed == [True, False]


def test_only_a_fit_that_rebalances_waits_with_functions_of_a_splits_sizes() -> None:
    split, model = in_split(batches=(40, 24))
    x, y = numbers(64)
    split.fit(model, x, y, verbose=0)
    functions: Any = split.functions_of(model)[0]
    functions._functions._on_gpus = True  # those of a CPU serve any size

    def sized(**options: Any) -> list[int]:
        split.fit(model, x, y, verbose=0, **options)
        return [len(of._functions) for of in functions._functions._usual.values()]

    assert sized(callbacks=[split.monitor(rebalance=True)]) == [0]
    assert sized() == [1]
