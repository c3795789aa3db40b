"""What measured memory says of larger batches, and what a joint run leaves of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpubalance.planning.memory import forecast, joint_bytes, joint_limit, predict_limit
from tests.support.known import known

MIB = 1 << 20


@given(
    st.integers(0, 500),
    st.integers(1, 64),
    st.integers(0, 4000),
    st.integers(600, 8000),
)
def test_linear_memory_leaves_exactly_what_is_asked(
    base: int, per_sample: int, extra: int, memory: int
) -> None:
    def peak(batch: int) -> int:
        return (base + per_sample * batch) * MIB

    fits = (memory - base) // per_sample
    points = [(batch, peak(batch)) for batch in sorted({1, 2, max(3, fits // 2)})]
    limit = joint_limit(
        points, fits, memory_bytes=memory * MIB, extra_bytes=extra * MIB
    )
    assert limit <= fits
    assert limit == 0 or peak(limit) + extra * MIB <= memory * MIB
    assert limit == fits or peak(limit + 1) + extra * MIB > memory * MIB


def test_unknown_memory_takes_nothing_off() -> None:
    assert (
        joint_limit([(8, MIB), (16, 2 * MIB)], 512, memory_bytes=None, extra_bytes=MIB)
        == 512
    )
    assert joint_limit([], 512, memory_bytes=MIB, extra_bytes=MIB) == 512


def test_one_device_has_nobody_to_reduce_with() -> None:
    assert joint_bytes(100, 1, 10) == 0
    assert joint_bytes(100, 2, 0) == joint_bytes(100, 4, 0) == 200


def test_packs_take_less_than_a_copy_of_all_gradients() -> None:
    assert joint_bytes(100, 2, 10) == 120
    assert joint_bytes(100, 2, 90) == 200


@given(st.integers(1, 10**6), st.integers(0, 10**12), st.integers(1, 10**9))
def test_of_linear_memory_the_forecast_is_sharp(
    limit: int, base: int, slope: int
) -> None:
    points = [(batch, base + slope * batch) for batch in (1, 2, 4, 8)]
    said = known(forecast(points, base + slope * limit))
    assert (said.sure, said.best, said.doubt) == (limit, limit, limit + 1)


@given(st.integers(2, 10**6), st.integers(0, 10**12), st.integers(1, 10**9))
def test_of_linear_memory_two_batches_predict_the_limit(
    limit: int, base: int, slope: int
) -> None:
    points = [
        (batch, base + slope * batch)
        for batch in {max(1, limit // 4), max(2, limit // 2)}
    ]
    assert predict_limit(points, base + slope * limit) == (
        limit if len(points) > 1 else None
    )


def test_memory_that_does_not_rise_predicts_nothing() -> None:
    assert predict_limit([(10, 500), (20, 500)], 1000) is None
