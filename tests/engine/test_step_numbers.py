"""What a step decides by numbers, by hand: powers of parts, a link's speed, sizes, times."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpubalance.settings.device import DeviceProfile
from tests.support.cases import cases
from tests.support.late import tf

A, B = np.array([3.0, 1.0, -2.0]), np.array([5.0, -4.0, 1.0])
PAIR: Any = (SimpleNamespace(), SimpleNamespace())
PARTS = [(0.25, A), (0.75, B)]
WHOLES = {1: 0.25 * A + 0.75 * B, 0: A + B, 2: 0.25**2 * A + 0.75**2 * B}


def weight_exponents(
    whole: Any, near: float = 1e-6, rounding: Any = 0.0, parts: Any = PARTS
) -> Any:
    from gpubalance.engine.step.sums import matching_exponents

    return matching_exponents(whole, parts, near, rounding)


def test_the_power_is_that_with_which_parts_make_the_whole() -> None:
    for exponent, whole in WHOLES.items():
        assert weight_exponents(whole) == [exponent]
    assert weight_exponents(A) == []
    nothing = [(0.25, np.zeros(3)), (0.75, np.zeros(3))]
    assert weight_exponents(np.zeros(3), parts=nothing) == [1, 0, 2]


def test_parts_agree_within_the_largest_norm_and_rounding() -> None:
    """A norm is not compared, only how large it is: here 5."""
    mean = WHOLES[1]
    off = np.array([9.0, -0.5, 0.0])
    for near, agrees in ((0.11, True), (0.05, False)):
        assert weight_exponents(mean + off * [0, 1, 0], near) == [1] * agrees
    assert weight_exponents(mean + off * [0, 1, 0], 0.05, rounding=0.26) == [1]
    assert weight_exponents(mean + off * [0, 1, 0], 0.05, rounding=0.24) == []
    assert weight_exponents(mean + off * [1, 0, 0], 0.0) == [1]


def test_of_several_quantities_each_may_be_apart_by_a_part_of_all() -> None:
    """The second is 0: it may be apart by a tenth of what all together may."""
    whole = np.stack([WHOLES[1], np.zeros(3)])
    parts = [(weight, np.stack([sketches, np.zeros(3)])) for weight, sketches in PARTS]
    size = np.linalg.norm(whole[..., 0])
    for part, agrees in ((0.9, True), (1.1, False)):
        moved = whole + np.array([[0, 0, 0], [0, 0.001 * size * part, 0]])
        assert weight_exponents(moved, 0.01, parts=parts) == [1] * agrees


def test_marks_are_a_norm_and_products_that_add_up() -> None:
    """Rows of an embedding count in their places."""
    from gpubalance.engine.step.sums import norms, products, sketches_of

    first, second = tf.constant([[3.0, 4.0], [0, 0]]), tf.constant([[0.0, 0], [1, 1]])
    rows = tf.IndexedSlices(tf.constant([[3.0, 4.0]]), [0], tf.constant([2, 2]))
    sketches = sketches_of([first, second, first + second, rows]).numpy()
    assert norms(sketches) == pytest.approx([5.0, math.sqrt(2), math.sqrt(27), 5.0])
    of_first, of_second, of_both, _ = products(sketches)
    assert of_first + of_second == pytest.approx(of_both)
    assert sketches[3] == pytest.approx(sketches[0])
    assert abs(of_first[0] - of_first[1]) > 1e-3  # of two vectors


SIZES = [0, 1 << 16, 1 << 19, 10**6]


@cases("rate, tried", (1e6, SIZES[:2]), (1e7, SIZES[:3]), (1e12, SIZES))
def test_a_links_speed_is_that_of_the_first_sum_that_takes_long(
    rate: float, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpubalance.engine.replicas import Replicas
    from gpubalance.engine.step import functions

    asked: list[int] = []

    def seconds_of(_: Any, places: Any, nbytes: int) -> float:
        assert places == (0, 1)
        asked.append(nbytes)
        return 0.001 + nbytes / rate

    monkeypatch.setattr(functions, "seconds_of_sum", seconds_of)
    monkeypatch.setattr(functions, "seconds_of_one_more", lambda *_: 0.0005)
    replicas = Replicas(None, ("CPU:0", "CPU:1"), PAIR)
    latency_s, bytes_per_s = functions._link_of(replicas, 10**6)
    assert (latency_s, asked) == (0.0005, tried)
    assert bytes_per_s == pytest.approx(rate)
    of_nothing = Replicas(None, ("CPU:0", "CPU:1"), PAIR)
    monkeypatch.setattr(functions, "seconds_of_sum", lambda *_: 0.03)
    assert functions._link_of(of_nothing, 10**6)[1] == math.inf


def test_how_many_samples_a_dataset_has_and_takes_at_a_time() -> None:
    from gpubalance.engine.datasets import batch_of, sample_count_of, static_batch_of

    ten = tf.data.Dataset.range(10)
    whole, rest = ten.batch(4, drop_remainder=True), ten.batch(4)
    zipped = tf.data.Dataset.zip((rest, rest))
    unlike = tf.data.Dataset.zip((rest, ten.batch(3)))
    of_filter = rest.filter(lambda _: True)
    weighed = tf.data.Dataset.zip((whole, ten))  # one number for all samples
    sizes = list(map(static_batch_of, (ten, whole, weighed, rest)))
    assert sizes == [None, 4, 4, None]
    ahead, single = rest.prefetch(1), rest.unbatch()
    assert [batch_of(one) for one in (whole, rest, ahead, zipped, of_filter)] == [4] * 5
    assert [batch_of(one) for one in (ten, unlike, single)] == [None] * 3
    assert [sample_count_of(one) for one in (whole, rest, ahead)] == [8, 10, 10]
    for unknown in (rest.repeat(), of_filter, rest.take(2), ten):
        assert sample_count_of(unknown) is None
    assert sample_count_of(tf.data.Dataset.range(0).batch(4)) == 0


def test_the_time_of_simulated_devices_is_their_own() -> None:
    from gpubalance.engine.pace import clocks
    from gpubalance.engine.replicas import DeviceTime
    from gpubalance.engine.step.functions import pack_bytes_for
    from gpubalance.settings.device import JointProfile

    profile = DeviceProfile(name="paced", alpha_s=0.1, beta_s=0)
    pair: Any = clocks([profile, profile], JointProfile(), seed=0)
    pair[0].free_s, pair[1].free_s = 5.0, 7.0
    time = DeviceTime(pair)
    assert (time.is_simulated, time.now_s, time.late_part()) == (True, 7.0, None)
    time.pause(2.0)
    assert [clock.free_s for clock in pair] == [7.0, 9.0]
    pair[0].steps, pair[0].late_steps, pair[1].steps, pair[1].late_steps = 4, 1, 2, 1
    assert time.late_part() == 0.5
    time.begin_timings(others_compute=True)
    told = [(one.steps, one.late_steps, one.others_compute) for one in pair]
    assert told == [(0, 0, True)] * 2
    assert not DeviceTime([SimpleNamespace()]).is_simulated  # type: ignore[list-item]
    paced: Any = SimpleNamespace(clocks=pair)
    assert pack_bytes_for(None, paced) == 0  # their gradients come all at once


def test_a_parts_share_is_weighed_by_its_power_in_its_own_type() -> None:
    from gpubalance.engine.step.sums import batch_of, one_vector, weighed, wide

    value = tf.constant([8.0, 4.0], tf.float16)
    half = tf.constant(0.5)
    shares = [weighed(value, half, exponent).numpy() for exponent in (0, 1, 2)]
    assert [share.tolist() for share in shares] == [[8, 4], [4, 2], [2, 1]]
    assert {share.dtype for share in shares} == {np.dtype("float16")}
    kinds = [tf.float16, tf.float32, tf.float64]
    assert list(map(wide, kinds)) == [tf.float32, tf.float32, tf.float64]
    both = one_vector([value, tf.constant([1.0], tf.float64)])
    assert (both.dtype, both.numpy().tolist()) == (tf.float64, [8, 4, 1])
    assert one_vector([value]).dtype == tf.float32
    assert int(batch_of({"x": tf.zeros((7, 2))})) == 7


def test_rows_that_all_parts_have_add_up_one_by_one() -> None:
    from gpubalance.engine.step.gradients import by_rows, summable

    of_words = tf.ones((2, 2))
    positions = tf.IndexedSlices(tf.ones((3, 2)), tf.constant([1, 1, 4]), [5, 2])
    values, row_forms = summable([positions, of_words])
    assert values[0] is positions.values
    assert values[1] is of_words
    first, second = by_rows([2 * value for value in values], row_forms)
    assert first.values.numpy().tolist() == [[2, 2]] * 3
    assert (first.indices, first.dense_shape) == (positions.indices, [5, 2])
    assert second.numpy().tolist() == [[2, 2]] * 2


def test_a_batch_is_computed_in_no_more_pieces_than_it_has() -> None:
    """The first piece has the weight 2, the others 3."""
    from gpubalance.engine.step.gradients import PartResult, over_micro_batches

    seen: list[tuple[int, float]] = []

    def run_part(data: Any, weight: float) -> PartResult:
        seen.append((len(data), weight))
        total = tf.reduce_sum(data)
        return PartResult(total, [None, 10 * total], [None], [])

    weights: Any = SimpleNamespace(first_micro_batch=2.0, other_micro_batch=3.0)
    for batch, sizes in (4, [4]), (5, [1, 4]), (11, [3, 4, 4]):
        seen.clear()
        found = over_micro_batches(run_part, tf.range(batch), weights, tf.constant(4))
        assert seen == [(size, 3.0 if n else 2.0) for n, size in enumerate(sizes)]
        total = batch * (batch - 1) // 2
        assert (found.packed_numbers, found.grads) == (total, [None, 10 * total])


def test_a_replicas_samples_are_those_between_its_places() -> None:
    from gpubalance.engine.feed import _cut

    cut = _cut({"x": tf.range(5)}, tf.constant([1, 3]))
    assert cut["x"].numpy().tolist() == [1, 2]
