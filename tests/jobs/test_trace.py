"""Which steps are asked for as traces, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gpubalance.errors import BadInput
from gpubalance.jobs.events import Doing, Event
from gpubalance.jobs.measure.trace import trace
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Tracing
from gpubalance.workers.messages import Trace, Traced
from tests.jobs.probes import QUICK, devices_of
from tests.support.cases import cases

ARE_REACHED = "gpubalance.jobs.measure.trace.are_reached"
TRACING = Tracing(folder="logs", name="run", steps=3)


@cases("apart, names", (True, ["run-GPU-0", "run-GPU-1"]), (False, ["run", "run"]))
def test_each_split_is_traced_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, *, apart: bool, names: list[str]
) -> None:
    asked: list[Trace] = []
    told: list[Event] = []

    def ask(request: Trace, _: type[Traced]) -> Traced:
        asked.append(request)
        return Traced(missing=None if request.split.batches == (4,) else "no kernels")

    def each(work: Callable[..., Any], among: Sequence[int]) -> dict[int, Any]:
        return {number: work(number, SimpleNamespace(ask=ask)) for number in among}

    groups = [(device,) for device in devices_of(QUICK, QUICK)]
    failures = {1: BadInput("full", remedy="")}
    worker_group: Any = SimpleNamespace(groups=groups, each=each, failures=failures)
    splits = {0: BatchSplit((8,)), 1: BatchSplit((4,))}
    monkeypatch.setattr(ARE_REACHED, lambda: apart)
    warnings = trace(worker_group, splits, TRACING, told.append, apart=apart)
    assert [(one.split, one.tracing.name) for one in asked] == [
        *zip(splits.values(), names, strict=True)
    ]
    (doing,) = told
    assert isinstance(doing, Doing)
    assert (" 3 steps " in doing.text, doing.stays) == (True, apart)
    assert doing.text.endswith(", into logs on None") == apart
    assert [one.code for one in warnings] == ["not-traced", "trace-without-gpu"]
    for warning, device, why in zip(warnings, (1, 0), ("full", "no k"), strict=True):
        assert why in warning.message
        assert (f"GPU:{device}" in warning.message) == apart
    assert trace(worker_group, splits, None, told.append) == []
    assert len(told) == 1
