"""A profiler trace: its place, its steps, and what it says of GPUs that are not in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpubalance.settings.measuring import Tracing
from tests.support.cases import cases


def test_so_many_steps_are_traced_and_waited_for_inside(tmp_path: Path) -> None:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from gpubalance.engine.session import record_trace

    done: list[str] = []
    tracing = Tracing(folder=str(tmp_path), name="run-1", steps=3)
    calls = partial(done.append, "step"), partial(done.append, "wait")
    assert record_trace(*calls, tracing, gpus=0) is None
    assert done == ["step"] * 3 + ["wait"]
    (path,) = (tmp_path / "plugins" / "profile" / "run-1").glob("*.xplane.pb")
    names = []
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        events = [own for line in plane.lines for own in line.events]
        names += [plane.event_metadata[own.metadata_id].name for own in events]
    assert names.count("train") == 3
    assert sorted(one.name for one in tmp_path.iterdir()) == ["plugins"]


def test_a_failed_step_leaves_no_trace_and_no_profiler(tmp_path: Path) -> None:
    from gpubalance.engine.session import record_trace

    def fail() -> None:
        raise ZeroDivisionError

    # Another one could not start if the first were still running
    for name in ("first", "second"):
        tracing = Tracing(folder=str(tmp_path), name=name)
        with pytest.raises(ZeroDivisionError):
            record_trace(fail, lambda: None, tracing, gpus=0)
    assert list((tmp_path / "plugins" / "profile").iterdir()) == []


NO_CUPTI = "host: Failed to load libcupti (is it installed and accessible?)"
PLANES = ["/device:GPU:0", "/device:GPU:1"]


@cases(
    "planes, says",
    ([], "libcupti"),
    (PLANES[:1], "CUPTI reported 1 of 2 GPUs"),
    (PLANES, None),
)
def test_gpus_that_are_not_in_the_trace(tmp_path: Path, planes: Any, says: Any) -> None:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from gpubalance.engine.session import missing_gpus

    space = xplane_pb2.XSpace(errors=() if planes else (NO_CUPTI,))
    for name in planes:
        space.planes.add(name=name).lines.add().events.add()
    space.planes.add(name="/device:GPU:7")  # one without an event was only there
    (tmp_path / "host.xplane.pb").write_bytes(space.SerializeToString())
    found = missing_gpus(tmp_path, 2)
    assert (found is None) if says is None else (found is not None and says in found)
