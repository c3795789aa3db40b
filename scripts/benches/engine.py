"""Throughput of the product's own step and of `Split.fit`, interleaved with loops of others.

Also what `run` tells of these loops.

Each ratio is of two loops in turns in one process. Two equal models in one process differ by some
per cent here, by where their memory lies, for as long as it lives. So there are several processes,
and their medians count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from gpubalance.training.split import Split
from scripts.benches.loops import BareLoop, KerasFit, Ours, SplitFit, repeated
from scripts.benches.stepping import stepping
from scripts.benches.turns import in_processes, ratio_of
from scripts.benches.wanted import Wanted, judged
from tests.cli.program import ROOT
from tests.training.models import compiled

_HERE = "scripts.benches.engine"
_PAIR = str(ROOT / "configs" / "gtx1080ti-gtx1080.toml")
_OF_PAIR = (820, 568)
_BATCHES = (1680, 1120)  # steps of some 30 ms here; a GPU's are even longer
_EVEN = (1400, 1400)
_ALIKE = Wanted(0.95, 1.05)
# Memory's peak is both devices' at one moment: equally many steps are equally likely to have it.
_STEPS = 60
_TIMINGS = 3
_SEVERAL = 8  # steps in one call of Keras'


class Row(NamedTuple):
    """Two loops that a process sets up, to measure the ratio of their throughputs in so many turns.

    The ratio is the first's throughput over the second's.
    """

    loops: Callable[[], tuple[Any, Any]]
    wanted: Wanted
    pairs: int
    maximum: int = 24

    def ratio(self) -> float:
        """This process's ratio."""
        first, second = self.loops()
        return ratio_of(first.throughput, second.throughput, self.pairs)


def _judged(rows: Mapping[str, Row]) -> Iterator[str]:
    for name, row in rows.items():
        yield f"{name}: {judged(in_processes(_HERE, name), row.wanted, row.maximum)}, in processes"


def _layers() -> list[Any]:
    """Layers whose steps take some 100 ms here.

    So Keras' own work for a step counts as little as on a GPU.
    """
    from keras import Input
    from keras.layers import Dense, Flatten

    return [
        Input((28, 28, 1)),
        Flatten(),
        Dense(256, "relu"),
        Dense(128, "relu"),
        Dense(10, "softmax"),
    ]


def _many_metrics() -> Any:
    import keras

    more = [
        keras.metrics.SparseTopKCategoricalAccuracy(k, name=f"top_{k}")
        for k in range(2, 9)
    ]
    return compiled(
        _layers(),
        optimizer="adam",
        metrics=["accuracy", *more, "sparse_categorical_accuracy"],
    )


def _perceptual() -> Any:
    import keras
    from keras import layers, ops

    eye = keras.Sequential(
        [keras.Input((10,)), *(layers.Dense(512, "tanh") for _ in range(2))]
    )
    return compiled(
        _layers(),
        lambda y, p: ops.mean((eye(ops.one_hot(y[:, 0], 10)) - eye(p)) ** 2, axis=-1),
        "adam",
    )


MODELS: dict[str, Callable[[], Any]] = {
    **{
        kind: stepping(kind, _layers)
        for kind in ("distillation", "gradient penalty", "four views", "last layer")
    },
    "nine metrics": _many_metrics,
    "a perceptual loss": _perceptual,
}


_WITH_XLA = ("nine metrics", "a perceptual loss")


# `--model` finds them by these names.
globals().update((f"model_{n}", make) for n, make in enumerate(MODELS.values()))


def data() -> Any:
    """The pipeline of these models, as `--data` names it."""
    return repeated(sum(_BATCHES))


def _told(name: str, steps: int = 2, **options: Any) -> Ours:
    model = f"scripts.benches.engine:model_{list(MODELS).index(name)}"
    return Ours(
        _BATCHES,
        data="scripts.benches.engine:data",
        model=model,
        steps=steps,
        **options,
    )


def _fit(
    batches: Sequence[int], simulate: str = "2", *own: Callable[[], Any]
) -> SplitFit:
    return SplitFit(Split(batches=batches, simulate=simulate), *own)


def _trained(name: str) -> SplitFit:
    return _fit(_BATCHES, "2", MODELS[name], data)


def _told_and_trained(name: str) -> tuple[Ours, SplitFit]:
    trained = _trained(name)  # which sets the devices up
    return _told(name), trained


def _told_and_trained_with_xla(name: str) -> tuple[Ours, SplitFit]:
    def make() -> Any:
        model = MODELS[name]()
        model.jit_compile = True
        return model

    trained = _fit(_BATCHES, "2", make, data)
    return _told(name, xla=True), trained


def _after_predict(loop: SplitFit) -> SplitFit:
    """This loop, of whose model one sample was predicted before it ever trained."""
    loop.predict_one()
    return loop


def _several_a_call(batches: Sequence[int]) -> SplitFit:
    split = Split(batches=batches, simulate="2")
    return SplitFit(split, steps_per_execution=_SEVERAL)


ENGINE = {
    "our step over a bare MirroredStrategy loop, both 1680/1120 on plain CPU devices": Row(
        lambda: (Ours(_BATCHES), BareLoop(_BATCHES)), Wanted(0.98), 8
    ),
    "our step over Keras' fit, both 1400/1400 on plain CPU devices": Row(
        lambda: (Ours(_EVEN), KerasFit(sum(_EVEN))), Wanted(1.0), 8
    ),
    **{
        f"told over trained, {one}, samples/s": Row(
            partial(_told_and_trained, one), _ALIKE, 4, 12
        )
        for one in MODELS
    },
    **{
        f"told over trained with XLA, {one}, samples/s": Row(
            partial(_told_and_trained_with_xla, one), _ALIKE, 4, 12
        )
        for one in _WITH_XLA
    },
}
TRAINING = {
    "Split.fit over run, on the simulated pair (820/568)": Row(
        # Paced steps take their time on any machine, half a minute in each turn.
        lambda: (_fit(_OF_PAIR, _PAIR), Ours(_OF_PAIR, _PAIR)),
        Wanted(0.95),
        2,
    ),
    "Split.fit over run, on plain CPU devices (1680/1120)": Row(
        lambda: (_fit(_BATCHES), Ours(_BATCHES)), Wanted(0.95), 6
    ),
    "Split.fit over Keras' fit, on plain CPU devices at an even split (1400/1400)": Row(
        lambda: (_fit(_EVEN), KerasFit(sum(_EVEN))), Wanted(1.0), 6
    ),
    "Split.fit over run, after a first predict of one sample (1680/1120)": Row(
        lambda: (_after_predict(_fit(_BATCHES)), Ours(_BATCHES)), Wanted(0.95), 6
    ),
    # Keras' own predict of one sample, or fit with several steps a call, raises over two devices.
    "Split.fit after a first predict of one sample over Keras' fit (1400/1400)": Row(
        lambda: (_after_predict(_fit(_EVEN)), KerasFit(sum(_EVEN))), Wanted(1.0), 6
    ),
    f"Split.fit over run, with steps_per_execution={_SEVERAL} (1680/1120)": Row(
        lambda: (_several_a_call(_BATCHES), Ours(_BATCHES)), Wanted(0.95), 6
    ),
    f"Split.fit with steps_per_execution={_SEVERAL} over Keras' fit (1400/1400)": Row(
        lambda: (_several_a_call(_EVEN), KerasFit(sum(_EVEN))), Wanted(1.0), 6
    ),
}


def main() -> Iterator[str]:
    yield from _judged(ENGINE)
    for name in MODELS:
        peaks = zip(
            *(in_processes(_HERE, what, name) for what in ("told", "trained")),
            strict=True,
        )
        yield (
            f"told over trained, {name}, peak memory: "
            f"{judged((a / b for a, b in peaks), _ALIKE, 24)}"
        )


def training() -> Iterator[str]:
    yield from _judged(TRAINING)


def _peak_bytes(what: str, name: str) -> float:
    """The peak of TensorFlow's memory on the host, in which all plain CPU devices are."""
    if what == "told":
        _told(name, _STEPS, seconds=0.0).throughput()
    else:
        # These are as many steps as `Ours` takes in its timings.
        _trained(name).fit(steps_per_epoch=_TIMINGS * _STEPS, verbose=0)
    from gpubalance.engine.memory import memory_bytes

    return float(memory_bytes("CPU:0", "peak") or 0)


if __name__ == "__main__":
    print(
        _peak_bytes(*sys.argv[1:])
        if sys.argv[2:]
        else {**ENGINE, **TRAINING}[sys.argv[1]].ratio()
    )
