"""Compares the engine's stamps, which the host makes, with CUPTI's times of the same steps' kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpubalance.numbers.stats import median
from gpubalance.results.timing import Timing
from gpubalance.settings.requests import Settings
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
    yield Figure("stamp_cost", cost, f"stamping makes a step of `run` {cost:+.1%} longer" if cost is not None else "")
    session = place.session(Settings(model=place.model))
    split = Shares((batch,))
    list(session.measure(split, seconds=0.5, at_least=3, steps_per_timing=1, stamped=False))
    list(session.measure(split, seconds=0.5, at_least=3, steps_per_timing=1, stamped=True))
    yield _launches(session._names[0])
    plain, stamped = (_traced(place, session, split, stamped=stamped) for stamped in (False, True))
    bare = [window for _, window in plain]
    copied = {kind: median([float(len(getattr(window, kind))) for window in bare]) for kind in ("to_host", "to_device")}
    told = f"an unstamped step, the wait for it and its loss: {copied['to_host']:.0f} copies to the host, "
    yield Figure("copies", copied, told + f"{copied['to_device']:.0f} to the device")
    idle = [window.first_kernel_s for window in bare if window.kernels]
    if idle:
        yield Figure("first_kernel_s", idle, f"a first kernel {1e6 * median(idle):.0f} µs after its call")
    yield _beside(stamped, unstamped=copied["to_host"])


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
    apart = unstamped <= _READ_AFTERWARDS
    pairs = [(timing, marks_of(window) if apart else None) for timing, window in stamped]
    known = [(timing, marks) for timing, marks in pairs if marks is not None]
    value: dict[str, Any] = {
        "stamps": [[(timing.compute_s or (0.0,))[0], timing.step_s or 0.0] for timing, _ in pairs],
        "trace": [marks and marks._asdict() for _, marks in pairs],
    }
    if not known:
        seen = sorted({len(window.to_host) for _, window in stamped})
        return Figure("beside_kernels", value, f"the trace does not show the stamps' copies ({seen} copies a window)")
    value["compute"] = median([(timing.compute_s or (0.0,))[0] / marks.compute_s for timing, marks in known])
    value["step"] = median([(timing.step_s or 0.0) / marks.step_s for timing, marks in known])
    value["busy"] = median([marks.busy for _, marks in known])
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
