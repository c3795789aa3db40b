"""A probe made of step times that somebody measured elsewhere, in whatever framework."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from gpubalance.errors import BadInput
from gpubalance.jobs.probe.probed_device import fitted, solo_rate
from gpubalance.numbers.stats import mad, median
from gpubalance.planning.curve import best_of, sensible_of
from gpubalance.results.common import StepTime, Throughput, now
from gpubalance.results.probe import (
    BatchLimit,
    CurvePoint,
    DeviceProbe,
    Probe,
    times_of,
)
from gpubalance.settings.device import Device, DeviceProfile
from gpubalance.settings.record import Record, first_fault
from gpubalance.settings.settings import Settings
from gpubalance.system.files import content_of
from gpubalance.text import clean

_REMEDY = (
    "write a table with the columns device, batch and seconds: one line per timed step"
)
_COMMAS = "use commas between columns and a point in numbers: 4090,64,0.050"
_MOST_BYTES = 1 << 20
_SHOWN = 100  # characters of a table's head
# What a column of times may be called, with its unit in seconds
_UNITS = {"seconds": 1.0, "s": 1.0, "milliseconds": 1e-3, "ms": 1e-3}
_DECIMAL_COMMA = re.compile(r"\s*\d+,\d+\s*")
# No table of seconds has only such, unless its steps are long: as milliseconds they are usual.
_DOUBTFUL_S = 1.0
_FEWEST = 2  # batches of a device, so that there is a curve


class _Step(Record):
    """A line of the table: how long a device took for a batch."""

    device: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)
    ]
    # Within these, so are all rates and sums.
    batch: Annotated[int, Field(ge=1, le=10**6)]
    seconds: Annotated[float, Field(gt=1e-6, le=1e6)]


def probe_of_times(path: Path) -> Probe:
    """The probe that a CSV table stands for; its largest batch of each device is the limit.

    All batches are multiples of what those in the table are. Raises BadInput, which names the line.
    """
    by_device: dict[str, dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for step in _steps(path):
        by_device[step.device][step.batch].append(step.seconds)
    if not by_device:
        raise BadInput(f"{path} has a header but no rows", remedy=_REMEDY)
    for name, times in by_device.items():
        if len(times) < _FEWEST:
            raise BadInput(
                f"{path}: {name} has only one batch",
                remedy="give two or more batches per device",
            )
    devices = tuple(map(_device, range(len(by_device)), by_device, by_device.values()))
    batches = [batch for times in by_device.values() for batch in times]
    return Probe(
        created=now(),
        devices=devices,
        settings=Settings(model=clean(path.stem)),
        environment=None,
        model=None,
        batch_multiple=math.gcd(*batches),
        margin_bytes=0,
        max_batch=None,
        parallel=False,
        probes=tuple(map(_probe, range(len(devices)), by_device.values())),
        complete=True,
        warnings=(),
    )


def _steps(path: Path) -> list[_Step]:
    content = content_of(path, "a table of step times", _MOST_BYTES, _REMEDY)
    try:
        text = content.decode("utf-8-sig")
        lines = [clean(line, _MOST_BYTES) for line in text.splitlines()]
        rows = csv.DictReader(lines, skipinitialspace=True, strict=True)
        heads = [head.strip().lower() for head in rows.fieldnames or ()]
        rows.fieldnames = heads
        _check_heads(path, heads)
        times = next(name for name in _UNITS if name in heads)
        steps = []
        for row in rows:
            _refuse_decimal_commas(f"{path}, line {rows.line_num}", row)
            fields: dict[str, Any] = {"device": row["device"], "batch": row["batch"]}
            step = _Step.model_validate({**fields, "seconds": row[times]})
            fields["seconds"] = step.seconds * _UNITS[times]
            steps.append(_Step.model_validate(fields))
    except ValidationError as error:
        why = f"{path}, line {rows.line_num}: {first_fault(error)}"
        raise BadInput(why, remedy=_REMEDY) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} is not a CSV table: {error}", remedy=_REMEDY) from None
    if times == "seconds":
        _refuse_milliseconds(path, steps)
    return steps


def _check_heads(path: Path, heads: Sequence[str]) -> None:
    """Raises BadInput for a table without the columns, or with others between semicolons."""
    if len(heads) == 1 and ";" in heads[0]:
        raise BadInput(f"{path} has semicolons between its columns", remedy=_COMMAS)
    missing = [name for name in ("device", "batch") if name not in heads]
    if not any(name in heads for name in _UNITS):
        missing.append("seconds")
    if missing:
        only = f", only {clean(', '.join(heads), _SHOWN)}" if heads else ""
        raise BadInput(f"{path} has no column {missing[0]}{only}", remedy=_REMEDY)


def _refuse_decimal_commas(place: str, row: Mapping[str | None, Any]) -> None:
    """Raises BadInput for a number such as "0,05"; without quotes, it is a column too many."""
    more = row.get(None)
    if more:
        raise BadInput(
            f"{place} has more columns than the header; is there a comma in a number?",
            remedy=_COMMAS,
        )
    for value in row.values():
        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
            raise BadInput(f"{place}: {value} has a decimal comma", remedy=_COMMAS)


def _refuse_milliseconds(path: Path, steps: Sequence[_Step]) -> None:
    """Asks whether the seconds are milliseconds if no step is short: the column's name answers."""
    shortest_s = min((step.seconds for step in steps), default=0.0)
    if shortest_s < _DOUBTFUL_S:
        return
    longest_s = max(step.seconds for step in steps)
    raise BadInput(
        f"{path}: every step takes {shortest_s:g} s or more, up to {longest_s:g} s: are these "
        "milliseconds?",
        remedy="name the column ms if they are, s if they are seconds",
    )


def _device(number: int, name: str, times: dict[int, list[float]]) -> Device:
    curve = tuple((batch, median(seconds)) for batch, seconds in sorted(times.items()))
    profile = DeviceProfile(name=name, curve=curve)
    uuid = f"{name} {number}"
    return Device(
        index=number,
        uuid=uuid,
        name=name,
        memory_bytes=None,
        simulated=True,
        profile=profile,
    )


def _probe(number: int, times: dict[int, list[float]]) -> DeviceProbe:
    curve = tuple(_point(batch, seconds) for batch, seconds in sorted(times.items()))
    largest = curve[-1].batch
    rates = [(point.batch, point.throughput.median) for point in curve]
    elapsed_s = sum(sum(seconds) for seconds in times.values())
    return DeviceProbe(
        device=number,
        curve=curve,
        batch_limit=BatchLimit(
            fits=largest,
            fails=None,
            max_batch=largest,
            memory_bytes=None,
            needed_bytes=None,
            trials=(),
        ),
        step_time_model=fitted(times_of(curve, given=True)),
        solo_best=solo_rate(best_of(rates)),
        sensible=solo_rate(sensible_of(rates)),
        steady=True,
        measured_s=elapsed_s,
        elapsed_s=elapsed_s,
        children=0,
        failures=(),
        complete=True,
    )


def _point(batch: int, seconds: list[float]) -> CurvePoint:
    step_s = median(seconds)
    step_time = StepTime(
        median=step_s,
        mad=mad(seconds),
        ci95=None,
        steps_per_sample=1,
        samples=tuple(seconds),
        at_s=tuple(accumulate(seconds)),
    )
    return CurvePoint(
        batch=batch,
        step_time_s=step_time,
        throughput=Throughput(median=batch / step_s, ci95=None),
        memory_peak_bytes=None,
        precise=False,
        steady=True,
    )
