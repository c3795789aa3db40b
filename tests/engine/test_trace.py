"""A profiler trace: its place, its steps, and what it says of GPUs that are not in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.settings.measuring import Tracing


def test_so_many_steps_are_traced_and_waited_for_inside(tmp_path: Path) -> None:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from gpubalance.engine.trace import record_trace

    done: list[str] = []
    tracing = Tracing(folder=str(tmp_path), name="run-1", steps=3)
    assert (
        record_trace(
            lambda: done.append("step"), lambda: done.append("wait"), tracing, gpus=0
        )
        is None
    )
    assert done == ["step"] * 3 + ["wait"]
    (path,) = (tmp_path / "plugins" / "profile" / "run-1").glob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    events = [
        (plane, own)
        for plane in space.planes
        for line in plane.lines
        for own in line.events
    ]
    assert [plane.event_metadata[own.metadata_id].name for plane, own in events].count(
        "train"
    ) == 3
    assert sorted(one.name for one in tmp_path.iterdir()) == ["plugins"]


def test_a_failed_step_leaves_no_trace_and_no_profiler(tmp_path: Path) -> None:
    from gpubalance.engine.trace import record_trace

    def fail() -> None:
        raise ZeroDivisionError

    # Another one could not start if the first were still running
    for name in ("first", "second"):
        with pytest.raises(ZeroDivisionError):
            record_trace(
                fail, lambda: None, Tracing(folder=str(tmp_path), name=name), gpus=0
            )
    assert list((tmp_path / "plugins" / "profile").iterdir()) == []


@pytest.mark.parametrize(
    ("planes", "errors", "says"),
    [
        (
            (),
            ("host: Failed to load libcupti (is it installed and accessible?)",),
            "libcupti",
        ),
        (("/device:GPU:0",), (), "CUPTI reported 1 of 2 GPUs"),
        (("/device:GPU:0", "/device:GPU:1"), (), None),
    ],
)
def test_gpus_that_are_not_in_the_trace(
    tmp_path: Path, planes: tuple[str, ...], errors: tuple[str, ...], says: str | None
) -> None:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from gpubalance.engine.trace import missing_gpus

    space = xplane_pb2.XSpace(errors=errors)
    for name in planes:
        space.planes.add(name=name).lines.add().events.add()
    space.planes.add(name="/device:GPU:7")  # one without an event was only there
    (tmp_path / "host.xplane.pb").write_bytes(space.SerializeToString())
    found = missing_gpus(tmp_path, 2)
    assert (found is None) if says is None else (found is not None and says in found)
