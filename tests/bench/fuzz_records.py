"""What a worker says and what a journal holds, right but for one thing, or wholly right."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from gpubalance.jobs.keep.kept import KeptRound, KeptWindow, RunKey
from gpubalance.results.common import Model
from gpubalance.results.timing import Timing
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Flops, Measured
from tests.bench.fuzz_input import change
from tests.jobs.drawn import ready
from tests.render.measurements import measurement, step_time

RUN = RunKey(devices=("CPU-0", "CPU-1"), model=Model(name="small", parameters=648, gradient_bytes=2592))
SPLIT = Shares((8, 8))
_PLAIN = Timing(steps=2, seconds=0.5, ended_s=7.5, input_wait_s=0.0)
_STAMPED = Timing(steps=1, seconds=0.25, ended_s=7.0, input_wait_s=0.0, compute_s=(0.1, 0.2), step_s=0.25)
_WINDOW = KeptWindow(
    run=RUN,
    name="",
    split=SPLIT,
    timings=(_PLAIN, _PLAIN),
    stamped=(_STAMPED,),
    memory_peak_bytes=(None, 5),
    throttled=((), ("sw-thermal",)),
    late_part=0.5,
)
_ROUND = KeptRound(
    probe="now",
    split=SPLIT,
    measured=measurement((8, 8), step_time(0.2)),
    limits=((0, 8),),
)
_DONE = Measured(memory_peak_bytes=(None, 5), late_part=0.0)
_TALK = [
    one.model_dump(mode="json")
    for one in (ready(2), _STAMPED, _STAMPED, _STAMPED, _DONE, _PLAIN, _DONE, Flops(forward=1e9))
]
_ENTRIES = [
    {"kind": type(one).__name__, "device": "joint", "record": one.model_dump(mode="json")} for one in (_WINDOW, _ROUND)
]


@st.composite
def _spoiled(draw: Any, base: Any) -> Any:
    """The same with one value changed, or as it is."""
    found = copy.deepcopy(base)
    if draw(st.integers(0, 5)):
        change(draw, found)
    return found


def _line(record: Any) -> bytes:
    return json.dumps(record).encode("utf-8", "surrogatepass")


def talk() -> list[bytes]:
    """All that a worker says from its start on, rightly, a line each."""
    return [_line(line) + b"\n" for line in _TALK]


def spoiled_talk() -> st.SearchStrategy[bytes]:
    """The same with one thing wrong, or none."""
    return _spoiled(_TALK).map(lambda lines: b"".join(_line(line) + b"\n" for line in lines))


def spoiled_entry() -> st.SearchStrategy[bytes]:
    """A line of a journal."""
    return st.sampled_from(_ENTRIES).flatmap(_spoiled).map(_line)
