"""The planner held against step times that others published, of devices alone and together.

Predictions go through what `balance` plans with: a probe, and estimates that learn from joint
measurements. A row's error is that of the predicted joint step time. tests/saved/published has the
tables that may be passed on, with their sources.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np

from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.jobs.plan.times import read_times
from gpubalance.planning.allocate import allocate
from gpubalance.planning.model import Line, fit_line
from gpubalance.planning.problem import Allocation, Binds
from gpubalance.results.probe import Probe
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.planning import PlanRequest
from tests.cli.program import ROOT
from tests.jobs.probes import measurement_of, of_config
from tests.support.known import known as sure

# A folder with a checkout of github.com/siasosp23/artifacts, commit aaf7a0de, in `artifacts`. That
# repository has no licence, so its tables are not ours to pass on.
FOLDER = "GPUBALANCE_PUBLISHED"
SAVED = ROOT / "tests" / "saved" / "published"
CLUSTERS = ("quad", "rtx", "aws", "dgx", "azure")
MODELS = ("imagenet", "cifar10", "bert")
SATURATING = ("yolov3", "deepspeech2")

Curve: TypeAlias = tuple[tuple[int, float], ...]  # (batch, seconds) of a device alone


@dataclass(frozen=True)
class Joint:
    """A joint measurement: `sync_s` is None if only the whole step was published."""

    split: BatchSplit
    step_s: float
    sync_s: float | None = None


@dataclass(frozen=True)
class PublishedSet:
    """Devices, what each takes alone, and joint steps, the smallest batch first."""

    alone: tuple[Curve, ...]
    joint: tuple[Joint, ...]
    micro_batches: int = 1

    def estimates(self, measured: Sequence[Joint] = ()) -> DeviceEstimates:
        """What the planner knows once these were measured, in this order."""
        probe = _probe(self.alone)
        request = PlanRequest(accumulate=self.micro_batches, batch_multiple=1)
        estimates = DeviceEstimates(probe, probe.devices, request)
        for joint in measured:
            learn(estimates, joint)
        return estimates


@cache
def _probe(alone: tuple[Curve, ...]) -> Probe:
    """The probe that `plan --curve` makes of such a table."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "times.csv")
        with path.open("w") as file:
            table = csv.writer(file)
            table.writerow(["device", "batch", "ms"])
            for device, curve in enumerate(alone):
                for batch, seconds in curve:
                    table.writerow([f"device {device}", batch, 1000 * seconds])
        return read_times(path).probe


def learn(estimates: DeviceEstimates, joint: Joint) -> None:
    """Learns a joint measurement as `balance` learns a round.

    The slowest device computes for the step less its sync, the others in proportion to what they
    take alone. Without a published sync each computes as long as alone, or as the step.
    """
    split = joint.split
    alone_s = [estimates.alone_s(device, split) for device in split.used]
    compute_s = min(max(alone_s), joint.step_s)
    if joint.sync_s is not None:
        compute_s = joint.step_s - joint.sync_s
    computes_s = [compute_s * one_s / max(alone_s) for one_s in alone_s]
    sync_s = joint.step_s - max(computes_s)
    batches = [split.batches[device] for device in split.used]
    measured = measurement_of(batches, computes_s, sync_s)
    replicas = []
    for device, replica in zip(split.used, measured.replicas, strict=True):
        replicas.append(replica.model_copy(update={"device": device}))
    measured = measured.model_copy(update={"replicas": tuple(replicas)})
    of_all_s = [0.0] * len(split.batches)
    for device, own_s in zip(split.used, computes_s, strict=True):
        of_all_s[device] = own_s
    binds: list[Binds] = ["speed"] * len(split.batches)
    planned = Allocation(split, tuple(of_all_s), joint.step_s, tuple(binds))
    estimates.learn(planned, measured)


def predicted_s(estimates: DeviceEstimates, split: BatchSplit) -> float:
    """The step time that the planner predicts for a split."""
    problem = estimates.problem
    return problem.step_time_s(problem.computes_s(split))


Measured: TypeAlias = tuple[Joint, ...]
# Which joint measurements are learnt; the others are predicted.
Choice: TypeAlias = Callable[[Measured], Measured]


def none(_joint: Measured) -> Measured:
    """Nothing: only figures of devices alone are known."""
    return ()


def middle(joint: Measured) -> Measured:
    """One, at the batch in the middle."""
    return (joint[len(joint) // 2],)


def two(joint: Measured) -> Measured:
    """Two, at the second smallest and the largest batch; nothing without a third to predict."""
    return (joint[1], joint[-1]) if len(joint) > 2 else ()


def errors(sets: Sequence[PublishedSet], choice: Choice) -> list[float]:
    """How far the predictions are off what was published, as fractions of it."""
    found = []
    for one in sets:
        measured = choice(one.joint)
        if not measured and choice is not none:
            continue
        estimates = one.estimates(measured)
        for joint in one.joint:
            if joint not in measured:
                found.append(predicted_s(estimates, joint.split) / joint.step_s - 1)
    return found


def errors_of_lines(sets: Sequence[PublishedSet]) -> list[float]:
    """Those of a plain line per device, and what one joint step took beyond them as sync."""
    found = []
    for one in sets:
        lines = [fit_line(curve) for curve in one.alone]

        def line_s(split: BatchSplit, lines: Sequence[Line] = tuple(lines)) -> float:
            return max(
                lines[device].step_time_s(split.micro_batches[device])
                * (split.batches[device] / split.micro_batches[device])
                for device in split.used
            )

        (measured,) = middle(one.joint)
        sync_s = max(0.0, measured.step_s - line_s(measured.split))
        for joint in one.joint:
            if joint != measured:
                found.append((line_s(joint.split) + sync_s) / joint.step_s - 1)
    return found


def errors_of_one_rate(sets: Sequence[PublishedSet]) -> list[float]:
    """Those of one joint step's samples per second, taken to be the same for all splits."""
    found = []
    for one in sets:
        (measured,) = middle(one.joint)
        for joint in one.joint:
            if joint != measured:
                samples = joint.split.global_batch / measured.split.global_batch
                found.append(measured.step_s * samples / joint.step_s - 1)
    return found


def of_sia(folder: Path, model: str, cluster: str) -> Iterator[PublishedSet]:
    """A set for each placement: 12 is a GPU on one node and two on another.

    `sync_time` is from the last gradient to the end of the all-reduce: exposed sync
    (`adaptdl/torch/parallel.py`, `_final_callback`).
    """
    rows: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    name = f"sia-simulator/traces/{model}/placements-{cluster}.csv"
    for row in _rows(folder / "artifacts" / name):
        times = (float(row["step_time"]), float(row["sync_time"]))
        rows[row["placement"]][round(float(row["local_bsz"]))] = times
    alone = tuple(
        (batch, step_s) for batch, (step_s, _) in sorted(rows.pop("1").items())
    )
    for placement, by_batch in rows.items():
        cards = sum(map(int, placement))
        joint = []
        for batch, _ in alone:
            if batch in by_batch:
                joint.append(Joint(BatchSplit((batch,) * cards), *by_batch[batch]))
        if len(joint) > 1:
            yield PublishedSet((alone,) * cards, tuple(joint))


def of_server_gear() -> Iterator[tuple[int, PublishedSet]]:
    """Each number of cards of a kind."""
    step_s: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for row in _rows(SAVED / "server-gear.csv"):
        cards = int(row["cards"])
        batch = int(row["batch"])
        step_s[row["card"], cards][batch] = cards * batch / float(row["images_per_s"])
    for (card, cards), by_batch in step_s.items():
        if cards > 1:
            joint = []
            for batch, seconds in by_batch.items():
                joint.append(Joint(BatchSplit((batch,) * cards), seconds))
            alone = tuple(step_s[card, 1].items())
            yield cards, PublishedSet((alone,) * cards, tuple(joint))


def of_four_cards() -> PublishedSet:
    """The published record of four cards: all of them and the first three, at 512 samples."""
    devices, _ = of_config("gtx1070-m40-gtx750")
    alone = tuple(tuple(sure(sure(device.profile).curve)) for device in devices)
    joint = []
    for cards, rate, sync_s in ((3, 2400, 0.078), (4, 2184, 0.100)):
        problem = PublishedSet(alone[:cards], ()).estimates().problem
        batches = allocate(replace(problem, global_batch=512)).split.batches
        split = BatchSplit((*batches, *[0] * (4 - cards)))
        joint.append(Joint(split, 512 / rate, sync_s))
    return PublishedSet(alone, tuple(joint))


def of_sailor() -> PublishedSet:
    """Four and six servers of three kinds, in micro-batches."""
    alone: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in _rows(SAVED / "sailor-alone.csv"):
        point = (int(row["micro_batch"]), float(row["seconds"]))
        alone[row["card"]].append(point)
    rows = list(_rows(SAVED / "sailor-joint.csv"))
    names = rows[-1]["cards"].split()
    joint = []
    for row in rows:
        cards = row["cards"].split()
        batch = int(row["batch"]) // len(cards)
        batches = []
        for name in names:
            batches.append(batch if name in cards else 0)
            if name in cards:
                cards.remove(name)
        micro_batches = [min(batch, int(row["micro_batch"])) for batch in batches]
        split = BatchSplit(tuple(batches), tuple(micro_batches))
        joint.append(Joint(split, float(row["seconds"]), float(row["all_reduce_s"])))
    curves = tuple(tuple(alone[name]) for name in names)
    return PublishedSet(curves, tuple(joint), micro_batches=64)


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def groups() -> Iterator[tuple[str, list[PublishedSet]]]:
    """The sets that one line is about, by its name."""
    if FOLDER in os.environ:
        folder = Path(os.environ[FOLDER])
        for cluster in CLUSTERS:
            sets = [one for model in MODELS for one in of_sia(folder, model, cluster)]
            yield f"Sia {cluster}", sets
        for model in SATURATING:
            sets = [one for name in CLUSTERS for one in of_sia(folder, model, name)]
            yield f"Sia {model}", sets
    sets_of_cards = list(of_server_gear())
    yield "server-gear, 2 cards", [one for cards, one in sets_of_cards if cards == 2]
    yield "server-gear, 4 and 8", [one for cards, one in sets_of_cards if cards > 2]
    yield "four cards", [of_four_cards()]
    yield "Sailor", [of_sailor()]


def main() -> Iterator[str]:
    yield "error of the joint step time, %: median, 90th percentile, worst (rows)"
    if FOLDER not in os.environ:
        yield f"Sia: left out, as {FOLDER} names no folder"
    for name, sets in groups():
        yield (
            f"{name}: from figures alone {_told(errors(sets, none))}; "
            f"after one joint measurement {_told(errors(sets, middle))}; "
            f"after two {_told(errors(sets, two))}; "
            f"after one, a line per device {_told(errors_of_lines(sets))}, "
            f"the same samples/s for all {_told(errors_of_one_rate(sets))}"
        )


def _told(found: Sequence[float]) -> str:
    if not found:
        return "-"
    off = 100 * np.abs(found)
    return f"{np.median(off):.1f}, {np.quantile(off, 0.9):.1f}, {off.max():.1f} ({len(off)})"
