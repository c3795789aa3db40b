"""A probe made of step times that somebody measured elsewhere, in whatever framework."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from gpubalance.errors import BadInput
from gpubalance.examples import FOLDER
from gpubalance.jobs.probe.probed_device import fitted, solo_rate
from gpubalance.numbers.stats import mad, median
from gpubalance.planning.curve import best_of, sensible_of
from gpubalance.planning.parts import split_step
from gpubalance.planning.problem import Problem
from gpubalance.results.common import StepTime, Throughput, now
from gpubalance.results.probe import (
    BatchLimit,
    CurvePoint,
    DeviceProbe,
    Probe,
    times_of,
)
from gpubalance.results.run import Measurement, Replica
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, DeviceProfile, table_uuid
from gpubalance.settings.record import Record, first_fault
from gpubalance.settings.settings import Settings
from gpubalance.system.files import content_of
from gpubalance.text import clean

_REMEDY = (
    "write a table with the columns device, batch and seconds: one line per timed step; "
    f"{FOLDER / 'torch_curve.py'} writes one with PyTorch"
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
_OOM = "oom"
# The step times of one joint step, as each device's process saw them, differ by less.
_SAME_STEP = 1.2

# Within these, so are all rates and sums.
_Seconds = Annotated[float, Field(gt=1e-6, le=1e6)]


class _Step(Record):
    """A line of the table: how long a device took for a batch, alone or in a joint step.

    `joint` is how long that step took in all. No time is known of a batch that `ran_out` of memory.
    """

    device: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)
    ]
    batch: Annotated[int, Field(ge=1, le=10**6)]
    seconds: _Seconds | None
    joint: _Seconds | None
    ran_out: Literal["alone", "together"] | None


@dataclass(frozen=True)
class JointStep:
    """A step of devices together: the line of each, by name, with its own compute and update."""

    lines: Mapping[str, _Step]
    step_s: float

    def measured(
        self, devices: Sequence[Device], problem: Problem
    ) -> tuple[BatchSplit, Measurement] | None:
        """Its split over these devices, and its record; None if it has others too.

        A batch above a device's limit was taken in as few micro-batches as possible.
        """
        names = [device.name for device in devices]
        if not self.lines.keys() <= set(names):
            return None
        batches = [
            self.lines[name].batch if name in self.lines else 0 for name in names
        ]
        micro_batches = []
        for batch, load in zip(batches, problem.loads, strict=True):
            count = -(-batch // max(1, load.limit))
            micro_batches.append(-(-batch // max(1, count)))
        split = BatchSplit(tuple(batches), tuple(micro_batches))
        own_s = [self.lines[names[place]].seconds or 0.0 for place in split.used]
        parts = split_step(self.step_s, [own_s], [[0.0] * len(own_s)], 0.0)
        replicas = []
        for number, place in enumerate(split.used):
            replica = Replica(
                device=place,
                batch=batches[place],
                micro_batch=micro_batches[place],
                throughput=batches[place] / self.step_s,
                compute_s=parts.compute_s[number],
                update_s=0.0,
                wait_s=parts.wait_s[number],
                utilisation=min(1.0, parts.compute_s[number] / self.step_s),
                memory_peak_bytes=None,
            )
            replicas.append(replica)
        used = split.without_idle
        return split, Measurement(
            batches=used.batches,
            micro_batches=used.micro_batches,
            global_batch=used.global_batch,
            step_time_s=_step_time([self.step_s]),
            throughput=Throughput(median=used.global_batch / self.step_s, ci95=None),
            replicas=tuple(replicas),
            sync_s=parts.sync_s,
            input_wait_s=0.0,
            slow_s=0.0,
            excess_s=parts.excess_s,
            imbalance=parts.imbalance,
        )


@dataclass(frozen=True)
class TimesTable:
    """A table of step times: of devices alone as a probe, of devices together as they are.

    `ran_out` has the batches that had no room in a joint step, as pairs of a device and a batch.
    """

    probe: Probe
    joint: tuple[JointStep, ...]
    ran_out: tuple[tuple[str, int], ...]


def read_times(path: Path) -> TimesTable:
    """Reads a CSV table; each device's largest batch below one that failed is its limit.

    All batches are multiples of what those in the table are. Raises BadInput, which names the line.
    """
    steps = _steps(path)
    if not steps:
        raise BadInput(f"{path} has a header but no rows", remedy=_REMEDY)
    alone: dict[str, dict[int, list[float]]] = {
        step.device: defaultdict(list) for step in steps
    }
    fails: dict[str, list[int]] = defaultdict(list)
    ran_out = []
    for step in steps:
        if step.ran_out == "together":
            ran_out.append((step.device, step.batch))
        elif step.ran_out == "alone":
            fails[step.device].append(step.batch)
        elif step.joint is None and step.seconds is not None:
            alone[step.device][step.batch].append(step.seconds)
    for name, times in alone.items():
        smallest = min(fails[name], default=math.inf)
        if len(times) < _FEWEST or min(times) >= smallest:
            raise BadInput(
                f"{path}: {name} has fewer than two batch sizes that it trained alone",
                remedy="give times of two or more batch sizes per device "
                "(torch_curve.py --multiple)",
            )
    return TimesTable(
        _probe_of(path, alone, fails), tuple(_joint_steps(path, steps)), tuple(ran_out)
    )


def _joint_steps(path: Path, steps: Sequence[_Step]) -> Iterator[JointStep]:
    """The joint steps. Raises BadInput if the lines of one tell of different steps."""
    for group in _together(steps):
        joint_s = [step.joint or 0.0 for step in group.values()]
        if max(joint_s) > _SAME_STEP * min(joint_s):
            raise BadInput(
                f"{path}: a joint step of {', '.join(group)} takes {min(joint_s):g} to "
                f"{max(joint_s):g} s",
                remedy="put the lines of one joint step one after the other, each "
                "with that step's seconds",
            )
        yield JointStep(group, median(joint_s))


def _together(steps: Sequence[_Step]) -> list[dict[str, _Step]]:
    """The lines of each joint step, by device.

    A line with a device that the present step has begins the next one. So does one with a device
    that comes before the last line's in the table, if that makes as few steps: torch_joint.py keeps
    the table's order, in which b, c, a, b, c are a step of b and c, and one of all three.
    """
    place = {
        name: n for n, name in enumerate(dict.fromkeys(step.device for step in steps))
    }
    as_they_come: list[dict[str, _Step]] = []
    in_order: list[dict[str, _Step]] = []
    last = math.inf
    for step in steps:
        if step.joint is None:
            continue
        if not as_they_come or step.device in as_they_come[-1]:
            as_they_come.append({})
        as_they_come[-1][step.device] = step
        if place[step.device] <= last:
            in_order.append({})
        in_order[-1][step.device] = step
        last = place[step.device]
    return in_order if len(in_order) == len(as_they_come) else as_they_come


def _probe_of(
    path: Path,
    alone: Mapping[str, dict[int, list[float]]],
    fails: Mapping[str, Sequence[int]],
) -> Probe:
    """A probe of devices alone, from the times of batches and the batches that failed."""
    devices = tuple(map(_device, range(len(alone)), alone, alone.values()))
    probes = []
    for number, (name, times) in enumerate(alone.items()):
        probes.append(_probe(number, times, min(fails.get(name, ()), default=None)))
    return Probe(
        created=now(),
        devices=devices,
        settings=Settings(model=clean(path.stem)),
        environment=None,
        model=None,
        batch_multiple=math.gcd(
            *(batch for times in alone.values() for batch in times)
        ),
        margin_bytes=0,
        max_batch=None,
        parallel=False,
        probes=tuple(probes),
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
            steps.append(_step_of(row, times))
    except ValidationError as error:
        why = f"{path}, line {rows.line_num}: {first_fault(error)}"
        raise BadInput(why, remedy=_REMEDY) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} is not a CSV table: {error}", remedy=_REMEDY) from None
    if times == "seconds" and "joint" not in heads:  # the examples' own table has it
        _refuse_milliseconds(path, steps)
    return steps


def _step_of(row: Mapping[str, Any], times: str) -> _Step:
    """A line, whose column `times` has its times' unit. Raises ValidationError."""
    fields = {
        "device": row["device"],
        "batch": row["batch"],
        "seconds": (row[times] or "").strip(),
        "joint": (row.get("joint") or "").strip() or None,
        "ran_out": None,
    }
    for name, where in (("seconds", "alone"), ("joint", "together")):
        if str(fields[name]).lower() == _OOM:
            fields["ran_out"] = where
    if fields["ran_out"]:
        return _Step.model_validate({**fields, "seconds": None, "joint": None})
    step = _Step.model_validate(fields)
    for name in ("seconds", "joint"):
        if fields[name] is not None:
            fields[name] = getattr(step, name) * _UNITS[times]
    return _Step.model_validate(fields)


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
    times_s = [step.seconds for step in steps if step.seconds is not None]
    shortest_s = min(times_s, default=0.0)
    if shortest_s < _DOUBTFUL_S:
        return
    longest_s = max(times_s)
    raise BadInput(
        f"{path}: every step takes {shortest_s:g} s or more, up to {longest_s:g} s: are these "
        "milliseconds?",
        remedy="name the column ms if they are, s if they are seconds",
    )


def _device(number: int, name: str, times: dict[int, list[float]]) -> Device:
    curve = tuple((batch, median(seconds)) for batch, seconds in sorted(times.items()))
    profile = DeviceProfile(name=name, curve=curve)
    return Device(
        index=number,
        uuid=table_uuid(name, number),
        name=name,
        memory_bytes=None,
        simulated=True,
        profile=profile,
    )


def _probe(
    number: int, times: dict[int, list[float]], fails: int | None
) -> DeviceProbe:
    curve = tuple(_point(batch, seconds) for batch, seconds in sorted(times.items()))
    fits = max(batch for batch in times if fails is None or batch < fails)
    rates = [(point.batch, point.throughput.median) for point in curve]
    elapsed_s = sum(sum(seconds) for seconds in times.values())
    return DeviceProbe(
        device=number,
        curve=curve,
        batch_limit=BatchLimit(
            fits=fits,
            fails=fails,
            max_batch=max(times),
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
    return CurvePoint(
        batch=batch,
        step_time_s=_step_time(seconds),
        throughput=Throughput(median=batch / median(seconds), ci95=None),
        memory_peak_bytes=None,
        precise=False,
        steady=True,
    )


def _step_time(seconds: Sequence[float]) -> StepTime:
    return StepTime(
        median=median(seconds),
        mad=mad(seconds),
        ci95=None,
        steps_per_sample=1,
        samples=tuple(seconds),
        at_s=tuple(accumulate(seconds)),
    )
