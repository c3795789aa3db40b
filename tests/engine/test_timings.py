"""A timing of simulated devices says what their profiles say, or more on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpubalance.planning.pipeline.problem import Segment
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import DeviceProfile, JointProfile
from gpubalance.settings.settings import Settings
from tests.cli.program import TINY
from tests.engine.pipelines import orders_of
from tests.jobs.probes import devices_of
from tests.support.cases import cases

# This data comes in a batch every 0.12 s, or later on a busy machine.
SLOW = """
import time
import numpy as np
import tensorflow as tf

def batches():
    while True:
        time.sleep(0.12)
        yield np.zeros((5, 8), "float32"), np.zeros(5, "int64")

def samples():
    like = tf.TensorSpec((5, 8), tf.float32), tf.TensorSpec((5,), tf.int64)
    return tf.data.Dataset.from_generator(batches, output_signature=like)
"""
_STEP_S = 0.1
_PROFILES = [
    DeviceProfile(name=name, alpha_s=of * _STEP_S, beta_s=0)
    for name, of in (("fast", 0.4), ("slow", 1.0))
]


def of_a_split(
    profiles: Any = _PROFILES, data: str | None = None, steps: int = 2, **more: Any
) -> Iterator[Timing]:
    from gpubalance.engine.session import Session

    settings = Settings(model=TINY, data=data)
    session = Session(devices_of(*profiles), settings, JointProfile(), seed=0)
    how = {"seconds": 0, "at_least": 4, "stamped": False, **more}
    return session.measure(BatchSplit((2, 3)), steps_per_timing=steps, **how)


def of_a_pipeline() -> Iterator[Timing]:
    from gpubalance.engine.pipeline.session import LayersSession

    given = devices_of(_PROFILES[1]), Settings(model="small"), JointProfile()
    session = LayersSession(*given, seed=0, cuts=())
    graph = session.facts()["graph"]
    segments = [Segment(0, len(graph.blocks) - 1, 0)]
    orders = orders_of(segments, graph, 1)
    how: Any = {"seconds": 0, "at_least": 4, "steps_per_timing": 2, "stamped": False}
    return session.pipe(segments, orders, 2, 1, **how)


@cases("measured", of_a_split, of_a_pipeline)
def test_no_timing_is_shorter_than_its_steps_if_the_host_is_late(measured: Any) -> None:
    """No timing is shorter than its steps however long the host takes between two."""
    for timing in measured():
        assert timing.seconds >= timing.steps * _STEP_S - 1e-9
        time.sleep(0.3 * _STEP_S)


def test_each_step_takes_its_compute_and_its_wait_for_data(tmp_path: Path) -> None:
    """However short the wait is, and alone in its timing."""
    (tmp_path / "mine.py").write_text(SLOW)
    how = {"steps": 1, "at_least": 20, "pipeline": True}
    found = [*of_a_split(data=f"{tmp_path / 'mine.py'}:samples", **how)]
    assert all(item.seconds >= _STEP_S + item.input_wait_s - 1e-9 for item in found)
    # On a busy machine one step may take so long that its data is ready, but not every step.
    assert any(0 < item.input_wait_s < _STEP_S / 2 for item in found)


def test_a_device_whose_update_is_shorter_begins_its_next_step_earlier() -> None:
    """A device whose update is shorter begins its next step earlier also in timings of one step.

    max (compute + update), as in training; not the longest compute plus the longest update.
    """
    first = DeviceProfile(name="paced", alpha_s=0.2, beta_s=0, update_s=0.3)
    pair = [first, first.model_copy(update={"alpha_s": 0.4, "update_s": 0.1})]
    # On a busy machine one timing may take longer, but not every one.
    shortest_s = min(one.seconds for one in of_a_split(pair, steps=1))
    assert shortest_s == pytest.approx(0.5)
