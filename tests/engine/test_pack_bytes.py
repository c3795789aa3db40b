"""Sizes of packs are bytes, whatever the type of the gradients in them."""

from __future__ import annotations

from typing import Any

import pytest

from gpubalance.planning.sync import best_pack_bytes
from tests.support.cases import cases
from tests.support.late import keras, tf


@cases("dtype, size", ("float64", 8), ("float32", 4), ("float16", 2), ("bfloat16", 2))
def test_a_value_counts_with_its_bytes(dtype: str, size: int) -> None:
    from gpubalance.engine.step.sums import _pack_key_and_bytes

    value = tf.zeros((3, 5), dtype)
    assert _pack_key_and_bytes(value, 7) == (tf.as_dtype(dtype), 15 * size)
    assert _pack_key_and_bytes(tf.zeros((), dtype), 7) == (tf.as_dtype(dtype), size)


def test_values_of_an_unknown_size_share_no_pack() -> None:
    from gpubalance.engine.step.sums import _pack_key_and_bytes

    rows = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([0, 1]), tf.constant([4, 3]))
    first, second = _pack_key_and_bytes(rows, 0), _pack_key_and_bytes(rows, 1)
    assert first[0] != second[0]
    assert first[1] == second[1] == 0


def test_each_value_gets_its_own_sum_in_its_own_type() -> None:
    """Types alternate, with one value that is missing and one that is rows."""
    from gpubalance.engine.replicas import build_strategy
    from gpubalance.engine.step.sums import over_replicas

    strategy = build_strategy(("CPU:0", "CPU:1"), "auto")
    kinds = ("float32", "float16", "float32", "float64", "float16", "float32")

    def on_replica() -> Any:
        context = tf.distribute.get_replica_context()
        number = int(tf.get_static_value(context.replica_id_in_sync_group))
        values: list[Any] = []
        for place, kind in enumerate(kinds):
            values.append(tf.fill((place + 1,), tf.cast(10 * place + number, kind)))
        values.insert(2, None)
        of_row = tf.fill((1, 2), 1.0 + number), tf.constant([number])
        values.append(tf.IndexedSlices(*of_row, tf.constant([3, 2])))
        totals = [total for total in over_replicas(values, 40) if total is not None]
        return tuple(map(tf.convert_to_tensor, totals))

    traced = tf.function(lambda: strategy.run(on_replica), autograph=False)
    *sums, rows = [strategy.experimental_local_results(one)[1] for one in traced()]
    assert rows.numpy().tolist() == [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]
    for place, (kind, total) in enumerate(zip(kinds, sums, strict=True)):
        assert total.dtype == kind
        assert total.numpy().tolist() == [20.0 * place + 1] * (place + 1)


def test_rows_in_bfloat16_are_sent_in_float32() -> None:
    """TensorFlow can't gather them in bfloat16, in which dense gradients may be sent."""
    from gpubalance.engine.step.sums import cast_back, cast_to_send

    def sent(form: Any, dtype: str) -> list[Any]:
        rows = tf.IndexedSlices(tf.ones((1, 2), dtype), tf.constant([3]))
        gradients = cast_to_send([tf.ones(2, dtype), None, rows], form)
        return [None if one is None else one.dtype.name for one in gradients]

    assert sent("full", "bfloat16") == ["bfloat16", None, "float32"]
    assert sent("bf16", "bfloat16") == ["bfloat16", None, "float32"]
    assert sent("full", "float16") == ["float16", None, "float16"]
    assert sent("bf16", "float32") == ["bfloat16", None, "float32"]
    assert cast_back([tf.ones(2, "bfloat16")], [tf.ones(2)])[0].dtype == tf.float32


def test_packs_are_for_bytes_of_trained_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a link where √(G·l·v) is the size: 16 times the bytes G give packs four times as large."""
    from gpubalance.engine.replicas import Replicas
    from gpubalance.engine.step import functions

    asked: list[int] = []

    def link_of(_: Replicas, max_bytes: int) -> tuple[float, float]:
        asked.append(max_bytes)
        return 1e-5, 1e9

    monkeypatch.setattr(functions, "_link_of", link_of)
    replicas = Replicas(None, ("CPU:0", "CPU:1"), ())
    for dtype, size in (("float64", 8), ("float32", 4), ("float16", 2)):
        untrained = keras.layers.Dense(3, trainable=False)
        trained = keras.layers.Dense(4096, dtype=dtype)
        model = keras.Sequential([keras.Input((1023,)), trained, untrained])
        gradient_bytes = 1024 * 4096 * size
        chosen = functions.pack_bytes_for(model, replicas)
        assert asked.pop() == gradient_bytes
        assert chosen == best_pack_bytes(gradient_bytes, 1e-5, 1e9) > 0
    small = keras.Sequential([keras.Input((15,)), keras.layers.Dense(1024)])
    assert functions.pack_bytes_for(small, replicas) == 0
    assert not asked


def test_numbers_come_out_of_a_vector_as_they_went_in_none_of_them_too() -> None:
    """With a floatx of float16 no metric's variable is summed."""
    from gpubalance.engine.step.sums import one_vector, split_vector

    values = [tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant(5.0)]
    whole, one = split_vector(one_vector(values), [(2, 2), ()])
    assert whole.numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert one.numpy() == 5.0
    assert split_vector(one_vector([]), []) == []
