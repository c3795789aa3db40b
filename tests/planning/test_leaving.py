"""Which sets of devices are worth a measurement, as their sync may be less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpubalance.planning.allocate import allocate
from gpubalance.planning.leaving import without_some
from gpubalance.planning.model import Line
from gpubalance.planning.problem import Load, Problem
from gpubalance.planning.sync import Syncs

FAST, SLOW, SLOWEST = (
    Load(Line(0.02, beta_s, 0.0), 100) for beta_s in (0.001, 0.01, 0.02)
)


def tried(problem: Problem) -> tuple[int, ...] | None:
    """The devices whose split is to be measured.

    Each of the splits before has the sync that is known.
    """
    found = without_some(problem, 1.005 * problem.value(allocate(problem)))
    return found.split.used if found else None


def measured(*sets: tuple[tuple[int, ...], float]) -> Syncs:
    return Syncs({frozenset(some): seconds for some, seconds in sets})


@pytest.mark.parametrize(
    ("syncs", "used"),
    [
        (measured(((0, 1, 2), 0.002)), None),  # each adds more than that
        (measured(((0, 1, 2), 0.012)), (0, 1)),  # the weakest adds less
        (measured(((0, 1, 2), 0.012), ((0, 1), 0.0119)), None),  # it did not help
        # It did; others add at least 1 ms
        (measured(((0, 1, 2), 0.012), ((0, 1), 0.001)), None),
    ],
)
def test_a_device_that_adds_less_than_sync_could_fall_by_is_left_out_once(
    syncs: Syncs, used: tuple[int, ...] | None
) -> None:
    assert tried(Problem((FAST, FAST, SLOWEST), syncs)) == used


def test_one_measurement_of_their_common_part_settles_all_sets() -> None:
    problem = Problem((FAST, SLOW, FAST, SLOWEST), measured(((0, 1, 2, 3), 0.015)))
    assert tried(problem) == (0, 2)
    assert (
        tried(replace(problem, sync=measured(((0, 1, 2, 3), 0.015), ((0, 2), 0.015))))
        is None
    )
    found = measured(((0, 1, 2, 3), 0.015), ((0, 2), 0.002))
    # One of the slow ones may have been it.
    assert tried(replace(problem, sync=found)) in {(0, 1, 2), (0, 2, 3)}


def test_two_devices_need_none_as_one_alone_has_no_sync() -> None:
    assert tried(Problem((FAST, SLOWEST), measured(((0, 1), 0.1)))) is None


def test_a_set_that_can_not_take_the_global_batch_is_not_tried() -> None:
    problem = Problem(
        (FAST, FAST, SLOWEST), measured(((0, 1, 2), 0.012)), global_batch=201
    )
    assert tried(problem) is None


def test_of_many_devices_a_whole_host_is_left_out() -> None:
    loads = tuple(replace(FAST, host=device // 8) for device in range(64))
    syncs = measured((tuple(range(64)), 0.05))
    assert tried(Problem(loads, syncs)) is not None
    near = tuple(range(8, 64))
    syncs = measured((tuple(range(64)), 0.05), (near, 0.002))
    assert allocate(Problem(loads, syncs)).split.used == near
