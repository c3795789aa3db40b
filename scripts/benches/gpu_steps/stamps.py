"""Compares the engine's stamps, which the host makes, with CUPTI's times of the same kernels.

Also measures how long a GPU has nothing to do in training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpubalance.numbers.stats import median
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from scripts.benches.gpu_steps.kernels import Window, idle_part, marks_of, read_windows
from scripts.benches.gpu_steps.place import Figure, Place

_BATCH = 256
_REHEARSED_BATCH = 8
_STEPS = 20
_LONGER = 100  # steps, in which the first one's start counts little
_TINY_KERNELS = 1000
# Copies to the host in a window: one that is waited for, and the loss
_READ_AFTERWARDS = 2


def figures(place: Place) -> Iterator[Figure]:
    """The findings.

    A traced window is a step behind another one, as in the program's stamped timings.
    """
    batch = _REHEARSED_BATCH if place.rehearsed else _BATCH
    done = place.program(
        *(
            "run",
            *place.options(1),
            "--model",
            place.model,
            "--batches",
            str(batch),
            "--baseline",
            "none",
        ),
        *(
            "--windows",
            "2",
            "--duration",
            "0.5" if place.rehearsed else "3",
            "--trace",
            str(place.folder),
        ),
    )
    missing = [
        one
        for one in done.out["warnings"]
        if one["code"] in ("not-traced", "trace-without-gpu")
    ]
    has = (
        "all that was asked for" if not missing else f"not all: {missing[0]['message']}"
    )
    yield Figure("trace", missing, f"`--trace` has {has}")
    cost = done.out["stamp_cost"]
    yield Figure(
        "stamp_cost",
        cost,
        "" if cost is None else f"stamping costs {cost:+.1%} of a step",
    )
    session = place.session()
    measure = partial(session.measure, BatchSplit((batch,)), steps_per_timing=1)
    for stamped in (False, True):
        list(measure(seconds=0.5, at_least=3, stamped=stamped))
    yield _launches(session._names[0])
    bare = _traced(
        place.folder / "unstamped", measure(seconds=0, at_least=_STEPS, stamped=False)
    )
    copies = median([float(len(window.to_host)) for _, window in bare])
    both = _traced(
        place.folder / "stamped", measure(seconds=0, at_least=_STEPS, stamped=True)
    )
    yield _beside(both, is_first=copies <= _READ_AFTERWARDS)
    yield from _idle(place, batch, session._names[0], measure)


def _idle(
    place: Place, batch: int, name: str, measure: Callable[..., Iterator[Timing]]
) -> Iterator[Figure]:
    """The part of the time between some steps' first and last kernel in which the GPU has none."""
    import keras

    from gpubalance.engine.models import probe_model
    from gpubalance.settings.device import JointProfile
    from gpubalance.training.split import Split
    from scripts.benches.loops import KerasFit, SplitFit, small

    devices = place.devices(1)
    make = small if place.rehearsed else probe_model
    steps = _STEPS if place.rehearsed else _LONGER
    ours = SplitFit(Split.of(devices, BatchSplit((batch,)), JointProfile()), make)
    keras_own = KerasFit(batch, (name,), make)
    reads = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: float(logs["loss"])
    )
    trained = {"steps_per_epoch": steps, "verbose": 0}
    ways: dict[str, Callable[[], object]] = {
        "`run`": lambda: list(
            measure(seconds=0, at_least=1, steps_per_timing=steps, stamped=False)
        ),
        "`split.fit`": lambda: ours.fit(**trained),
        "`split.fit` whose logs are read after each step": lambda: ours.fit(
            callbacks=[reads], **trained
        ),
        "Keras' `fit`": lambda: keras_own.fit(**trained),
    }
    for number, (way, train) in enumerate(ways.items()):
        train()  # traces
        (window,) = _windows(place.folder / f"idle-{number}", train)
        idle = idle_part(window)
        told = "the trace shows no kernels" if idle is None else f"{idle:.1%}"
        yield Figure(way, idle, f"idle in {way}: {told}")


def _windows(folder: Path, train: Callable[[], object]) -> list[Window]:
    """What the profiler sees while this trains."""
    from tensorflow.profiler import experimental

    experimental.start(str(folder))
    with experimental.Trace("window", step_num=0):
        train()
    experimental.stop()
    return read_windows(folder)


def _traced(folder: Path, timings: Iterator[Any]) -> list[tuple[Timing, Window]]:
    """Each timing with what the profiler saw in its window."""
    from tensorflow.profiler import experimental

    taken = [next(timings)]
    experimental.start(str(folder))
    for number in range(_STEPS - 1):
        with experimental.Trace("window", step_num=number):
            taken.append(next(timings))
    experimental.stop()
    return list(zip(taken[1:], read_windows(folder), strict=True))


def _beside(stamped: Sequence[tuple[Timing, Window]], *, is_first: bool) -> Figure:
    """Stamps beside CUPTI's times.

    `is_first`: stamps are a step's first copies to the host, as it makes no others.
    """
    stamps = [
        ((timing.compute_s or (0.0,))[0], timing.step_s or 0.0) for timing, _ in stamped
    ]
    marks = [marks_of(window) if is_first else None for _, window in stamped]
    value: dict[str, Any] = {
        "stamps": stamps,
        "trace": [one and one._asdict() for one in marks],
    }
    known = [
        (*stamp, mark)
        for stamp, mark in zip(stamps, marks, strict=True)
        if mark is not None
    ]
    if not known:
        seen = sorted({len(window.to_host) for _, window in stamped})
        return Figure(
            "beside_kernels",
            value,
            f"the trace does not show the stamps' copies ({seen} a window)",
        )
    value["compute"] = median(
        [compute_s / mark.compute_s for compute_s, _, mark in known]
    )
    value["step"] = median([step_s / mark.step_s for _, step_s, mark in known])
    value["busy"] = median([mark.busy for *_, mark in known])
    told = f"stamped compute is {value['compute']:.3f} of CUPTI's, the step {value['step']:.3f}; "
    return Figure(
        "beside_kernels",
        value,
        told + f"kernels ran in {value['busy']:.1%} of that compute",
    )


def _launches(device: str) -> Figure:
    """The seconds that each of many tiny kernels takes, one after the other."""
    import tensorflow as tf

    @tf.function
    def many(x: Any) -> Any:
        for _ in range(_TINY_KERNELS):
            x = tf.sin(x)
        return x

    with tf.device(device):
        x = tf.ones((16,))
        many(x).numpy()
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            many(x).numpy()
            taken.append((time.perf_counter() - began) / _TINY_KERNELS)
    return Figure(
        "tiny_kernel_s", taken, f"a tiny kernel every {1e6 * median(taken):.1f} µs"
    )
