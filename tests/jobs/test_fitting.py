"""A failure by chance, or a device that is blamed for another's, costs no throughput."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpubalance.errors import OutOfMemory
from tests.jobs.drawn import DrawnParty, DrawnWorker
from tests.support.machines import Machine

MACHINES = [Machine(seed, 0.0) for seed in range(5000, 5060)]
# The devices of these hold in a joint run what they hold alone, so nothing else fails.
ROOMY = [
    one for one in MACHINES if not one.joint.extra_memory and one.wanted.accumulate == 1
][:3]


def failing(*at: int) -> type[DrawnParty]:
    """Parties that run out of memory, for no reason, when they are asked for these times."""

    class Failing(DrawnParty):
        asked = 0

        @contextmanager
        def worker(self, number: int = 0) -> Iterator[DrawnWorker]:
            self.asked += 1
            if self.asked in at:
                raise OutOfMemory("replica 0 ran out of memory", replica=0)
            with super().worker(number) as worker:
                yield worker

    return Failing


@pytest.mark.parametrize("machine", ROOMY, ids=lambda machine: str(machine.seed))
def test_a_chance_out_of_memory_is_not_believed(machine: Machine) -> None:
    """Two of them are: the second when the whole split is tried again, or measured."""
    expected = machine.rate(machine.balanced().split)
    assert machine.rate(machine.balanced(party_of=failing(1)).split) == pytest.approx(
        expected, rel=0.01
    )
    for again in (3, 4):
        assert (
            machine.rate(machine.balanced(party_of=failing(1, again)).split)
            > 0.8 * expected
        )


class Misblaming(DrawnParty):
    """Parties that blame another device than the one that ran out of memory, as TensorFlow may."""

    @contextmanager
    def worker(self, number: int = 0) -> Iterator[DrawnWorker]:
        try:
            with super().worker(number) as worker:
                yield worker
        except OutOfMemory as error:
            error.replica = None if error.replica is None else (error.replica + 1) % 2
            raise


@pytest.mark.parametrize("seed", [5009, 5026])
def test_a_device_that_is_blamed_wrongly_keeps_its_batch(seed: int) -> None:
    machine = Machine(seed, 0.0)
    expected = machine.rate(machine.balanced().split)
    assert machine.rate(machine.balanced(party_of=Misblaming).split) == pytest.approx(
        expected, rel=0.01
    )
