"""Sums over replicas, in packs; and the form in which gradients are sent for that."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from gpubalance.planning.packs import packs_of
from gpubalance.settings.choices import Gradients


def over_replicas(values: Sequence[Any], pack_bytes: int = 0) -> list[Any]:
    """The sums of the replicas' values; None stays None. An infinity on one replica reaches all.

    They are summed in packs of that many bytes, the last values first, each pack as soon as all in
    it are there. A pack has one dtype, as TensorFlow makes one tensor of it. All replicas make the
    same packs in the same order.
    """
    context = tf.distribute.get_replica_context()
    numbers = [number for number, value in enumerate(values) if value is not None]
    sizes = [_kind_and_bytes(values[number], number) for number in numbers]
    summed: list[Any] = [None] * len(values)
    for pack in packs_of(sizes, pack_bytes):
        in_pack = [values[numbers[place]] for place in pack]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, in_pack)
        for place, total in zip(pack, sums, strict=True):
            summed[numbers[place]] = total
    return summed


def _kind_and_bytes(value: Any, number: int) -> tuple[Hashable, int]:
    """What a value can share a pack with, and its bytes. One of an unknown size shares none."""
    size = None if isinstance(value, tf.IndexedSlices) else value.shape.num_elements()
    if size is None:
        return number, 0
    return value.dtype, size * value.dtype.size


def sent(grads: Sequence[Any], gradients: Gradients) -> list[Any]:
    """Gradients in the form in which they are sent and summed: in full, or float32 as bfloat16.

    TensorFlow can't gather rows of bfloat16: they are sent as float32.
    """
    forms = []
    for grad in grads:
        if isinstance(grad, tf.IndexedSlices):
            if grad.dtype == tf.bfloat16:
                grad = tf.cast(grad, tf.float32)
        elif gradients != "full" and grad is not None and grad.dtype == tf.float32:
            grad = tf.cast(grad, tf.bfloat16)
        forms.append(grad)
    return forms


def received(sums: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    """The sums in the types of a replica's own gradients."""
    typed = []
    for total, grad in zip(sums, grads, strict=True):
        if grad is not None:
            total = tf.cast(total, grad.dtype)
        typed.append(total)
    return typed
