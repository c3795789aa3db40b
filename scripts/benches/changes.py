"""`scripts/bench changes [N]`: what changes of a split cost that trains 30 convolutions, as on GPUs.

Two plain CPU devices train with functions of their batches' sizes, which else only GPUs have. The
split changes five times, and on to N times, each time to one that was not there before.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil

from gpubalance.numbers.stats import median
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.training.split import Split
from scripts.benches.turns import printed

_HERE = "scripts.benches.changes"
_FEW = 5
_BATCH = 256
_LEAST = 26  # the first device's batch goes on from there
_EVERY = 2
_STEPS = 6  # of each split; two were dispatched before
# The first split trains so many times as long as its first steps took: it has lasted.
_LASTS = 3.0
_FIRST_STEPS = 4
# oneDNN keeps what it makes for each size, up to a number: a processor's, and no leak of a split.
_WITHOUT_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "0"}
_MOST_S = 2.0
_MOST_MIB = 10


def main(count: int = 200) -> Iterator[str]:
    """The seconds and the memory of the first five changes, and of all."""
    known = json.loads(printed(_HERE, str(count), **_WITHOUT_ONEDNN))
    costs_s, memory = known["costs_s"], known["memory_mib"]
    few_s = costs_s[:_FEW]
    verdict = "met" if max(few_s) <= _MOST_S else "missed"
    each = ", ".join(f"{cost_s:.2f}" for cost_s in few_s)
    yield (
        f"seconds of steps of {known['step_s'] * 1000:.0f} ms that the first {len(few_s)} changes cost: "
        f"{each}; wanted at most {_MOST_S:g} each: {verdict}"
    )
    yield (
        f"of all {count}: {median(costs_s):.2f} in the middle, {max(costs_s):.2f} at most; "
        f"{known['made']} functions of sizes were made"
    )
    for after in sorted({len(few_s), count}):
        more = memory[after] - memory[0]
        verdict = "met" if more <= _MOST_MIB else "missed"
        yield (
            f"resident after {after} changes: {memory[after]:.0f} MiB, {more:+.0f}; wanted at most "
            f"{_MOST_MIB} more: {verdict}"
        )


def _model() -> Any:
    import keras

    convolutions = [
        keras.layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(30)
    ]
    last = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((4, 4, 3)), *convolutions, *last])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    return model


def _resident_mib() -> float:
    """What is held, without what was freed and stays with the process."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return float(psutil.Process().memory_info().rss / 2**20)


def _changing(split: Split, count: int) -> Any:
    """A callback that changes the split once it has lasted, and ends after so many changes."""
    import keras

    class Changing(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.took_s: list[list[float]] = [[]]  # of each split's steps
            self.memory: list[float] = []
            self.made = 0  # after the first change

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            self._began_s = self._ended_s = time.perf_counter()
            steps = split.functions_called_here(self.model)
            self._functions: Any = steps._functions  # type: ignore[union-attr]
            self._functions._on_gpus = True  # as on GPUs

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            now_s = time.perf_counter()
            self.took_s[-1].append(now_s - self._ended_s)
            if batch + 1 == _FIRST_STEPS:
                self._first_s = now_s - self._began_s
            if self._has_lasted(batch, now_s):
                if not self.memory:
                    self._count_made()
                self.memory.append(_resident_mib())
                self.model.stop_training = len(self.memory) > count
                first = _LEAST + len(self.memory)
                split.shares = BatchSplit((first, _BATCH - first))
                self.took_s.append([])
            self._ended_s = time.perf_counter()

        def _count_made(self) -> None:
            make = self._functions._for_these

            def counted(*arguments: Any) -> Any:
                self.made += 1
                return make(*arguments)

            self._functions._for_these = counted
            for usual in self._functions._usual.values():
                usual._make = partial(counted, *usual._make.args)

        def _has_lasted(self, batch: int, now_s: float) -> bool:
            if self.memory:
                return len(self.took_s[-1]) >= _STEPS
            if batch + 1 < _FIRST_STEPS:
                return False
            return now_s - self._began_s > (1 + _LASTS) * self._first_s

    return Changing()


def _measure(count: int) -> dict[str, Any]:
    """What each change cost: what its split's steps took more than the median of all steps."""
    import numpy as np
    import tensorflow as tf

    split = Split(batches=(_BATCH // 2, _BATCH // 2), simulate=2)
    with split.scope():
        model = _model()
    random = np.random.default_rng(1)
    x = random.random((_BATCH, 4, 4, 3), np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, random.integers(0, 10, _BATCH)))
    changing = _changing(split, count)
    monitor = split.monitor(every=_EVERY)
    monitor.rebalances = True  # by the callback here
    model.fit(
        data.batch(_BATCH).repeat(),
        shuffle=False,
        steps_per_epoch=10**6,
        callbacks=[monitor, changing],
        verbose=0,
    )
    changed = changing.took_s[1 : count + 1]
    step_s = median([took_s for of_split in changed for took_s in of_split])
    costs_s = []
    for of_split in changed:
        costs_s.append(sum(max(0.0, took_s - step_s) for took_s in of_split))
    return {
        "step_s": step_s,
        "costs_s": costs_s,
        "memory_mib": changing.memory,
        "made": changing.made,
    }


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
