"""Compares the engine's stamps, which the host makes, with CUPTI's times of the same steps' kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpubalance.numbers.stats import median
from gpubalance.results.timing import Timing
from gpubalance.settings.shares import Shares
from tests.bench.gpu.kernels import marks_of, read_windows
from tests.bench.gpu.place import Place
from tests.bench.gpu.steps import Figure

_BATCH, _REHEARSED_BATCH = 256, 8
_STEPS = 20
_TINY_KERNELS = 1000
_READ_AFTERWARDS = 2  # copies to the host in a window: one that is waited for, and the loss


def figures(place: Place) -> Iterator[Figure]:
    """The findings. A traced window is a step behind another one, as in the program's stamped timings."""
    batch = _REHEARSED_BATCH if place.rehearsed else _BATCH
    done = place.program(
        *("run", *place.options(1), "--model", place.model, "--batches", str(batch), "--baseline", "none"),
        *("--windows", "2", "--duration", "0.5" if place.rehearsed else "3", "--trace", str(place.folder)),
    )
    missing = [one for one in done.out["warnings"] if one["code"] in ("not-traced", "trace-without-gpu")]
    has = "all that was asked for" if not missing else f"not all: {missing[0]['message']}"
    yield Figure("trace", missing, f"`--trace` has {has}")
    cost = done.out["stamp_cost"]
    yield Figure("stamp_cost", cost, "" if cost is None else f"stamping costs {cost:+.1%} of a step")
    session = place.session()
    split = Shares((batch,))
    list(session.measure(split, seconds=0.5, at_least=3, steps_per_timing=1, stamped=False))
    list(session.measure(split, seconds=0.5, at_least=3, steps_per_timing=1, stamped=True))
    yield _launches(session._names[0])
    plain, stamped = (_traced(place, session, split, stamped=stamped) for stamped in (False, True))
    yield _beside(stamped, unstamped=median([float(len(window.to_host)) for _, window in plain]))


def _traced(place: Place, session: Any, split: Shares, *, stamped: bool) -> list[tuple[Timing, Any]]:
    """Each timing with what the profiler saw in its window."""
    import tensorflow as tf

    folder = place.folder / ("stamped" if stamped else "unstamped")
    timings = session.measure(split, seconds=0, at_least=_STEPS, steps_per_timing=1, stamped=stamped)
    taken = [next(timings)]
    tf.profiler.experimental.start(str(folder))
    for number in range(_STEPS - 1):
        with tf.profiler.experimental.Trace("window", step_num=number):
            taken.append(next(timings))
    tf.profiler.experimental.stop()
    windows = read_windows(folder)
    assert len(windows) == len(taken) - 1, f"{len(windows)} windows in the trace, of {len(taken) - 1}"
    return list(zip(taken[1:], windows, strict=True))


def _beside(stamped: Sequence[tuple[Timing, Any]], *, unstamped: float) -> Figure:
    """Stamps beside CUPTI's times: they are a step's first copies to the host if an unstamped step makes none."""
    pairs = [(timing, marks_of(window) if unstamped <= _READ_AFTERWARDS else None) for timing, window in stamped]
    stamps = [((timing.compute_s or (0.0,))[0], timing.step_s or 0.0) for timing, _ in pairs]
    marks = [one for _, one in pairs]
    value: dict[str, Any] = {"stamps": stamps, "trace": [one and one._asdict() for one in marks]}
    known = [(*stamp, mark) for stamp, mark in zip(stamps, marks, strict=True) if mark is not None]
    if not known:
        seen = sorted({len(window.to_host) for _, window in stamped})
        return Figure("beside_kernels", value, f"the trace does not show the stamps' copies ({seen} a window)")
    value["compute"] = median([compute_s / mark.compute_s for compute_s, _, mark in known])
    value["step"] = median([step_s / mark.step_s for _, step_s, mark in known])
    value["busy"] = median([mark.busy for *_, mark in known])
    told = f"stamped compute is {value['compute']:.3f} of CUPTI's, the step {value['step']:.3f}; "
    return Figure("beside_kernels", value, told + f"kernels ran in {value['busy']:.1%} of that compute")


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
    return Figure("tiny_kernel_s", taken, f"a tiny kernel every {1e6 * median(taken):.1f} µs")
