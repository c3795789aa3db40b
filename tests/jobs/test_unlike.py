"""Steps that differ because their batches do: a distribution, with the mean to plan by."""

from __future__ import annotations

from gpubalance.jobs.measure.timings import Timings
from gpubalance.results.timing import Timing
from gpubalance.settings.shares import Shares

# Of ten batches one is long.
SINGLES = [0.04] * 9 + [0.14]
MEAN = 0.05


def _timings(*, unlike: bool) -> Timings:
    whole = [Timing(steps=10, seconds=10 * MEAN, input_wait_s=0.0, unlike=unlike) for _ in range(6)]
    alone = [
        Timing(steps=1, seconds=s, input_wait_s=0.0, compute_s=(s,), update_s=(0.0,), step_s=s, unlike=unlike)
        for s in SINGLES
    ]
    return Timings(Shares((8,)), timings=whole, stamped=alone)


def test_batches_that_differ_make_a_distribution_and_no_slow_steps() -> None:
    found = _timings(unlike=True).measurement()
    assert found.step_spread is not None
    assert (found.step_spread.p50_s, found.step_spread.steps) == (0.04, 10)
    assert 0.04 < found.step_spread.p95_s <= 0.14
    assert (found.step_time_s.median, found.replicas[0].compute_s, found.slow_s) == (MEAN, MEAN, 0.0)
    assert abs(_timings(unlike=True).stamp_cost or 0.0) < 1e-9


def test_of_batches_of_one_shape_the_same_is_a_slow_step() -> None:
    found = _timings(unlike=False)
    assert found.measurement().step_spread is None
    assert found.slow_steps == 1
    assert found.slow_s > 0
