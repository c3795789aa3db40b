"""One step of a pipeline as text: one line for each device, time from left to right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpubalance.numbers.units import format_seconds
from gpubalance.render.table import prose
from gpubalance.results.layers import Layers

# Passes of odd micro-batches are small letters, so that readers can tell them apart.
_FORWARD, _BACKWARD, _UPDATE, _TRANSFER, _NOTHING = "Ff", "Bb", "U", "-", "."
_LEAST_COLUMNS = 20


@dataclass(frozen=True)
class Span:
    """What a device does from one moment of a step to another: a pass of a micro-batch, "transfer" or "update"."""

    kind: str
    start_s: float
    end_s: float
    micro_batch: int = 0


def spans_of(result: Layers, device: int) -> Iterator[Span]:
    """What a device does, in order of time; between spans it is idle."""
    timeline = result.timeline
    free_s = 0.0
    for task in (task for task in timeline.tasks if task.device == device):
        waits_s, there_s = max(free_s, task.sent_s), min(task.ready_s, task.start_s)
        if there_s > waits_s:
            yield Span("transfer", waits_s, there_s)
        yield Span(task.kind, task.start_s, task.end_s, task.micro_batch)
        free_s = task.end_s
    yield from (Span("update", one.start_s, one.end_s) for one in timeline.updates if one.device == device)


def timeline_lines(result: Layers, width: int) -> list[str]:
    """`GPU:0 FfFfBbBb…` for each device; each column shows what takes most of its time."""
    labels = [result.devices[stage.device].label for stage in result.stages]
    left = max(map(len, labels)) + 2
    columns = max(_LEAST_COLUMNS, width - left)
    step_s = result.timeline.step_time_s
    head = f"a step of {format_seconds(step_s)}: F forward, B backward, U update, - transfer, . bubble"
    rows = [
        f"{label:<{left}}{_row(list(spans_of(result, stage.device)), step_s, columns)}"
        for label, stage in zip(labels, result.stages, strict=True)
    ]
    return [*prose(head, width), *rows]


def _row(spans: list[Span], step_s: float, columns: int) -> str:
    """For each column the sign that covers most of it."""
    column_s = step_s / columns
    covered: list[dict[str, float]] = [{} for _ in range(columns)]
    for span in spans:
        for column in range(int(span.start_s / column_s), min(columns, int(span.end_s / column_s) + 1)):
            over_s = min(span.end_s, (column + 1) * column_s) - max(span.start_s, column * column_s)
            sign = _sign(span)
            covered[column][sign] = covered[column].get(sign, 0.0) + over_s
    return "".join(_most(signs, column_s) for signs in covered)


def _sign(span: Span) -> str:
    signs = {"forward": _FORWARD, "backward": _BACKWARD, "update": _UPDATE, "transfer": _TRANSFER}[span.kind]
    return signs[span.micro_batch % len(signs)]


def _most(signs: dict[str, float], column_s: float) -> str:
    signs = {_NOTHING: column_s - sum(signs.values()), **signs}
    return max(signs, key=lambda sign: signs[sign])
