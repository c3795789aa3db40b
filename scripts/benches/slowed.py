"""A training over two real hosts of which one loses half its part of a core, and gets it back.

The split follows, and what it tells is held against this machine's clock. With large batches the
devices' compute counts, in one piece or in micro-batches; with small ones also what each host does
beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan as plan_of
from gpubalance.numbers.stats import median
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from gpubalance.settings.planning import PlanRequest
from scripts.benches.answering import answering
from scripts.benches.clusters import NotServedError, ssh
from scripts.benches.models import few_weights
from scripts.benches.namespaces import NoNamespacesError
from scripts.benches.quotas import NoQuotasError, limit
from scripts.benches.unlike_hosts import Hosts, unlike_hosts
from scripts.benches.wanted import Wanted
from tests.cli.program import PROGRAM, ROOT
from tests.jobs.probes import of_config, probe_of

_RATE = "1gbit"
_PART = 0.8  # of a core, for each host
_SLOW_PART = 0.4  # for the last one meanwhile
# Batches that are already on their way have the old split
_AHEAD = 4
# Steps of a training before, in which the last host becomes slow half-way and nothing follows
_STILL = 120
_LOOKS_EVERY_S = 0.05
_STAMPED = Wanted(maximum=10)  # steps until the split is changed
_OFF = Wanted(maximum=0.05)  # of the batch
_TOLD = Wanted(0.9, 1.1)


class Course(NamedTuple):
    """Of a training: the last host is slow from one step to another."""

    batch: int
    every: int  # which steps are timestamped
    slow: int
    back: int
    end: int
    is_all_compute: bool  # so that the quotas are the best split
    micro_batch: int | None = None

    def __str__(self) -> str:
        """Its batches."""
        if self.micro_batch is None:
            return f"batches of {self.batch}"
        return f"batches of {self.batch} in micro-batches of {self.micro_batch}"


_COURSES = (
    Course(1024, 2, 100, 260, 420, is_all_compute=True),
    Course(1024, 2, 100, 260, 420, is_all_compute=True, micro_batch=128),
    Course(256, 3, 180, 480, 780, is_all_compute=False),
)
_TRAINS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from scripts.benches.slowed import train
train(*sys.argv[1:])
"""


def main() -> Iterator[str]:
    """The lines about a training of each course."""
    if os.geteuid():
        yield "not measured: who makes hosts and quotas is root"
        return
    try:
        for number, course in enumerate(_COURSES):
            with (
                tempfile.TemporaryDirectory(prefix="gpb") as folder,
                unlike_hosts((_PART, _PART), _RATE, Path(folder)) as hosts,
                ssh(hosts),
            ):
                for line in _lines(course, _trained(hosts, number)):
                    yield f"{course}: {line}"
    except (NoNamespacesError, NoQuotasError, NotServedError) as error:
        yield f"not measured: {error}"


def _trained(hosts: Hosts, number: int) -> Mapping[str, Any]:
    """What the first process wrote of that course. Raises NotServedError if it failed."""
    plan = _write_plan(hosts, _COURSES[number].batch)
    script = hosts.folder / "train.py"
    script.write_text(_TRAINS)
    words = [PROGRAM, "launch", plan, str(script), plan, str(number)]

    def change_part(part: str) -> None:
        limit(hosts.all[-1].group, float(part))

    with answering(hosts.folder / "part", change_part):
        done = hosts.typed(words)
    if done.returncode:
        raise NotServedError(f"launch: {done.returncode}: {done.stderr[-2000:]}")
    said: Mapping[str, Any] = json.loads((hosts.folder / "said.json").read_text())
    return said


def _write_plan(hosts: Hosts, batch: int) -> str:
    """A plan that gives each host's plain device half a batch."""
    paced, _ = of_config("throttling")
    made = plan_of(probe_of(paced), paced, PlanRequest(global_batch=batch, sync_s=0.0))
    plain, _ = simulated_devices(1, [host.name for host in hosts.all])
    path = hosts.folder / "plan.json"
    there = {"devices": plain, "reached_by": "command"}
    path.write_text(made.model_copy(update=there).model_dump_json())
    return str(path)


def _lines(course: Course, said: Mapping[str, Any]) -> Iterator[str]:
    changes = said["changes"]
    if not changes or not course.slow < changes[0]["step"] < course.back:
        yield f"the split did not follow: {changes}: missed"
        return
    slow = [change for change in changes if change["step"] < course.back]
    back = [change for change in changes if change["step"] >= course.back]
    yield _phase(course, "slow", course.slow, slow, (_PART, _SLOW_PART))
    yield _phase(course, "as before", course.back, back, (_PART, _PART))
    usual_s = _step_s(said["still_s"], _STILL // 4, _STILL // 2)
    slow_s = _step_s(said["still_s"], _STILL // 2 + _AHEAD, _STILL)
    ends_s = said["ends_s"]
    first = slow[0]["step"]
    until = [change["step"] for change in slow[1:]] or [course.back]
    new_s = _step_s(ends_s, first + _AHEAD, until[0])
    yield f"the first change: {_told(slow[0]['gain'], slow_s / new_s)}"
    still_s = slow_s * (course.back - first) + usual_s * (course.end - course.back)
    took_s = ends_s[course.end - 1] - ends_s[first - 1]
    yield f"in all: {_told(said['gain'], still_s / took_s)}"
    equal = "bit-equal: met" if len(set(said["weights"])) == 1 else "unequal: missed"
    yield f"the processes' weights are {equal}"


def _phase(
    course: Course,
    name: str,
    begin: int,
    changes: Sequence[Mapping[str, Any]],
    parts: Sequence[float],
) -> str:
    """What the split did after the last host had changed its speed."""
    if not changes:
        return f"{name} from step {begin} on: the split did not change: missed"
    steps = ", ".join(f"step {change['step']}: {change['after']}" for change in changes)
    count = (changes[0]["step"] - begin) / course.every
    off = abs(changes[-1]["after"][0] / course.batch - parts[0] / sum(parts))
    text = f"{name} from step {begin} on: {steps}"
    if not course.is_all_compute:
        return text
    return (
        f"{text}; after {count:.0f} timestamped steps, wanted {_STAMPED}: "
        f"{_STAMPED.decision(count, count)}; {off:.1%} of the batch off the quotas, wanted {_OFF}: "
        f"{_OFF.decision(off, off)}"
    )


def _told(told: float, clock: float) -> str:
    ratio = told / clock
    return (
        f"{clock:.2f} × by the clock, told {told:.2f}: {ratio:.3f}; wanted {_TOLD}: "
        f"{_TOLD.decision(ratio, ratio)}"
    )


def _step_s(ends_s: Sequence[float], begin: int, end: int) -> float:
    """The median of the steps in between."""
    return median([ends_s[step] - ends_s[step - 1] for step in range(begin, end)])


def train(plan: str, number: str) -> None:
    """One process's part of the training. The first one asks for the quotas and writes what was."""
    import gpubalance
    from scripts.benches.loops import repeated
    from tests.support.late import keras

    folder = Path(plan).parent
    course = _COURSES[int(number)]
    hosts = [str(device.host) for device in read_record(Path(plan), Plan).devices]
    micro_batches = None
    if course.micro_batch is not None:
        micro_batches = [course.micro_batch] * len(hosts)
    split = gpubalance.Split(
        [f"{host}:0" for host in hosts],
        [course.batch // len(hosts)] * len(hosts),
        micro_batches=micro_batches,
        simulate=1,
        hosts=hosts,
    )
    with split.scope():
        model = few_weights()
    monitor = split.monitor(every=course.every, rebalance=True)

    def timed(parts: Mapping[int, float], steps: int, *callbacks: Any) -> list[float]:
        """When each step of a fit has ended, which asks for parts of a core at some of them."""
        ends_s: list[float] = []

        def note(step: int, logs: object) -> None:
            ends_s.append(time.perf_counter())
            if split.is_first and step in parts:
                written = folder / "part.new"
                written.write_text(str(parts[step]))
                written.rename(folder / "part")

        clock = keras.callbacks.LambdaCallback(on_train_batch_end=note)
        data = repeated(split.global_batch)
        how = {"steps_per_epoch": steps, "verbose": 0, "callbacks": [*callbacks, clock]}
        split.fit(model, data, **how)
        return ends_s

    keras.utils.set_random_seed(1)
    still_s = timed({_STILL // 2: _SLOW_PART, _STILL - 1: _PART}, _STILL)
    ends_s = timed({course.slow: _SLOW_PART, course.back: _PART}, course.end, monitor)
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights()))
    (folder / f"weights-{int(split.is_first)}").write_text(digest.hexdigest())
    if split.is_first:
        _write(folder, monitor, still_s, ends_s)


def _write(
    folder: Path, monitor: Any, still_s: Sequence[float], ends_s: Sequence[float]
) -> None:
    changes = []
    for change in monitor.changes:
        step = change.step - _STILL
        after = change.after.batches
        changes.append({"step": step, "after": after, "gain": change.gain})
    other = folder / "weights-0"
    while not other.exists():
        time.sleep(_LOOKS_EVERY_S)
    weights = [(folder / f"weights-{number}").read_text() for number in range(2)]
    said = {
        "changes": changes,
        "still_s": still_s,
        "ends_s": ends_s,
        "gain": monitor.gain,
        "weights": weights,
    }
    (folder / "said.json").write_text(json.dumps(said))
