"""Trains over two hosts with a plain device each: packs of gradients against all at once.

The two take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gpubalance
from gpubalance.numbers.stats import median
from scripts.benches.loops import repeated
from scripts.benches.models import BATCH, MODELS
from scripts.benches.turns import ratio_of

_PAIRS = 2
# An epoch's end is a small part of so many steps, and a launch ends within two minutes.
_STEPS = 20
# So many that an epoch's end does not count
_LONG = 50


def rate(
    split: gpubalance.Split, make: Callable[[], Any], steps: int = _STEPS
) -> Callable[[], float]:
    """A function that gives the steps per second of an epoch with that split.

    Another epoch has gone before.
    """
    import keras

    with split.scope():
        model = make()

    def measured() -> float:
        ends = list[float]()
        told = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: ends.append(time.perf_counter())
        )
        keras.utils.set_random_seed(1)  # all processes read the same batches
        data = repeated(split.global_batch)
        split.fit(
            model, data, steps_per_epoch=steps, epochs=2, verbose=0, callbacks=[told]
        )
        before, now = ends
        return steps / (now - before)

    return measured


def main(name: str, hosts: str) -> None:
    """One process's part, of a launched script.

    The first process prints the ratio of the throughputs.
    """
    names = hosts.split(",")
    gpus = [f"{host}:0" for host in names]

    def split_with(pack_bytes: int | None) -> gpubalance.Split:
        return gpubalance.Split(
            gpus, [BATCH] * len(names), simulate=1, hosts=names, pack_bytes=pack_bytes
        )

    packs, one = split_with(None), split_with(0)
    ratio = ratio_of(rate(packs, MODELS[name]), rate(one, MODELS[name]), _PAIRS)
    if packs.is_first:
        print(ratio)


def train(plan: str, name: str) -> None:
    """One process's part of a training with a plan of plain devices.

    The first process prints the samples per second of the epochs after the first one.
    """
    split = gpubalance.load_plan(plan, simulate=1)
    rates = [rate(split, MODELS[name], _LONG)() for _ in range(_PAIRS)]
    if split.is_first:
        print(split.global_batch * median(rates))
