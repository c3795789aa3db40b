"""The checks after a kill: processes, exit code, files, and what `--resume` ends with."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_result
from gpubalance.results.run import Run
from tests.bench.killed import COMMANDS, Kill, Program
from tests.cli.program import own

Limits = tuple[tuple[int | None, int | None], ...]


class Answers(NamedTuple):
    """What undisturbed commands find: the devices' limits, and the split that `balance` ends with."""

    limits: Limits
    split: tuple[int, ...]


_ENDS_WITHIN_S = 5.0
_TOLD = re.compile(r"(?m)^(?:… )?GPU:\d (?:batch|tried) \d+: ")
_WINDOW = re.compile(r"(?m)^window \d+ of \d+: ")
_ROUND = re.compile(r"(?m)^round \d+ \[[^]]*\]: (?!out of memory)")


@dataclass
class Seen:
    """What a kill led to. `told` counts what was reported as finished; `killed` is false if all was over before;
    `resumed`: `--resume` ended well.
    """

    kill: Kill
    killed: bool = True
    told: int = 0
    gone_s: float = 0.0
    resumed: bool = False
    faults: list[str] = field(default_factory=list)

    def expect(self, right: bool, fault: str) -> None:
        if not right:
            self.faults.append(fault)


def look(program: Program, seen: Seen, printed: tuple[str, str], answers: Answers) -> None:
    """Makes all checks after the end of a killed program, which `printed` (stdout, stderr), and then of `--resume`."""
    out, err = printed
    _look_for_orphans(program, seen)
    _look_at_the_end(program, seen, out, err)
    _look_at_files(program, seen)
    if seen.kill.command == "probe":
        _look_at_what_was_told(program, seen, err)
        _resume_probe(program, seen, answers.limits)
    elif _whole_run(program.output) is None:  # a whole result was written, however the program ended then
        _resume_joint(program, seen, err, answers.split)


def _look_for_orphans(program: Program, seen: Seen) -> None:
    began = time.monotonic()
    while (left := program.processes()) and time.monotonic() - began < _ENDS_WITHIN_S:
        time.sleep(0.05)
    seen.gone_s = time.monotonic() - began
    seen.expect(not left, f"{len(left)} processes are left after {_ENDS_WITHIN_S:.0f} s")
    for process in left:
        process.kill()


def _look_at_the_end(program: Program, seen: Seen, out: str, err: str) -> None:
    if seen.killed and (seen.kill.victim, seen.kill.number) == ("parent", signal.SIGINT) and _in_python(err):
        return
    code, number = program.process.returncode, int(seen.kill.number)
    if not seen.killed:
        right = {0}
    elif seen.kill.victim == "worker":
        right = {0, 6}  # the end of a worker without work is not noticed
    elif seen.kill.number == signal.SIGKILL:
        right = {-number}
    else:
        right = {128 + number, 0}  # 0 when all was over
        if out or not err:  # the signal itself, while Python starts and ends
            right.add(-number)
    seen.expect(code in right, f"exit code {code}: {err[-500:]}")
    seen.expect("Traceback" not in own(err), f"a traceback: {err[-1500:]}")
    seen.expect("a bug in" not in err, f"a bug: {err[-500:]}")


def _in_python(err: str) -> bool:
    """Whether the interrupt came while Python started, before a line of the program ran, by Python's own traceback."""
    return "KeyboardInterrupt" in err and "…" not in err and "gpubalance/cli" not in err


def _look_at_files(program: Program, seen: Seen) -> None:
    """Checks that the output, the kept probes and each line of a journal but the last are whole or absent."""
    probes = list((program.folder / "state").rglob("probes/*.json"))
    for path in [*probes, *([program.output] if program.output.exists() else [])]:
        try:
            read_result(path)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with it)
            seen.faults.append(f"{path.name} is not whole: {error}")
    for path in (program.folder / "state").rglob("*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            try:
                json.loads(line or "{}")
            except ValueError:
                seen.faults.append(f"a line of the journal is not whole: {line[:200]}")
    left = [path.name for path in program.folder.rglob("*.tmp")]
    by_kill = seen.kill.victim == "parent" and seen.kill.number == signal.SIGKILL
    seen.expect(not left or by_kill, f"left behind: {left}")


def _look_at_what_was_told(program: Program, seen: Seen, err: str) -> None:
    """Checks that each reported point and trial is in the journal or, if the probe is over, in its result."""
    told = set(_TOLD.findall(err))
    seen.told = len(told)
    if program.output.exists():
        kept = Probe.model_validate_json(program.output.read_text()).probes[0]
        trials = kept.batch_limit.trials if kept.batch_limit else ()
        batches = {f"batch {p.batch}" for p in kept.curve} | {f"tried {t.batch}" for t in trials}
    else:
        lines = [line for path in program.folder.rglob("*.jsonl") for line in path.read_text().splitlines() if line]
        entries = [entry["record"] for entry in map(json.loads, lines) if entry["kind"] == "Attempt"]
        batches = {f"{of} {e['trial']['batch']}" for e in entries for of in ("batch", "tried")}
    lost = sorted(line for line in told if re.sub(r"^(?:… )?GPU:\d |: $", "", line) not in batches)
    seen.expect(not lost, f"told to be finished, and lost: {lost}")


def _resume_probe(killed: Program, seen: Seen, limits: Limits) -> None:
    kept = {one["trial"]["batch"]: one["point"] for one in _kept(killed.folder, "Attempt", lambda one: one["point"])}
    program = _resumed(killed, seen)
    if program is None:
        return
    found = limits_of(program.output)
    seen.resumed = True
    seen.expect(found == limits, f"--resume found {found}, and not {limits}")
    points = {point.batch: point for point in Probe.model_validate_json(program.output.read_text()).probes[0].curve}
    for batch, point in kept.items():
        there = points.get(batch)
        seen.expect(
            there is not None
            and (there.measured_again or list(there.step_time_s.samples) == point["step_time_s"]["samples"]),
            f"--resume measured batch {batch} anew, which was kept",
        )


def _resume_joint(killed: Program, seen: Seen, err: str, split: tuple[int, ...]) -> None:
    """Checks that `--resume` ends with a whole result with each reported window and round, and a balance's split."""
    windows = _kept(killed.folder, "KeptWindow", lambda record: record["name"] == "")
    rounds = _kept(killed.folder, "KeptRound", lambda record: record["measured"] is not None)
    told = len(_WINDOW.findall(err)), len(_ROUND.findall(err))
    seen.told = sum(told)
    seen.expect(len(windows) >= told[0], f"{told[0]} windows were told, and {len(windows)} are kept")
    seen.expect(len(rounds) >= told[1], f"{told[1]} rounds were told, and {len(rounds)} are kept")
    program = _resumed(killed, seen)
    if program is None:
        return
    result, run = read_result(program.output), _whole_run(program.output)
    if run is None:
        seen.faults.append("--resume ended without a whole run")
        return
    seen.resumed = True
    of_split = [one for one in windows if tuple(one["split"]["batches"]) == run.batches]
    times_s = [timing["seconds"] / timing["steps"] for one in of_split for timing in one["timings"]]
    found_s = run.step_time_s.samples[: len(times_s)]
    seen.expect(
        len(found_s) == len(times_s) and all(abs(a / b - 1) < 1e-5 for a, b in zip(found_s, times_s, strict=True)),
        "windows that were kept are not in what --resume ended with",
    )
    if isinstance(result, Plan) and result.balance:
        measured = [(list(r.batches), r.measured.throughput.median) for r in result.balance.rounds if r.measured]
        again = [batches for batches, _ in measured]
        seen.expect(run.batches == split, f"--resume ended with {run.batches}, and not {split}: {measured}")
        seen.expect(
            again[: len(rounds)] == [one["split"]["batches"] for one in rounds],
            f"--resume ended with rounds {again}, and {rounds} were kept",
        )


def split_of(path: Path) -> tuple[int, ...]:
    """The split of a whole result's run."""
    run = _whole_run(path)
    assert run is not None
    return run.batches


def _whole_run(path: Path) -> Run | None:
    """The complete run of a result or of its balance, or None."""
    if not path.exists():
        return None
    result = read_result(path)
    run = result.balance.run if isinstance(result, Plan) and result.balance else result
    return run if isinstance(run, Run) and run.complete else None


def _kept(folder: Path, kind: str, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The records of that kind in the journals, without a last line that was cut off."""
    lines = [line for path in folder.rglob("*.jsonl") for line in path.read_text().split("\n")[:-1] if line]
    return [one["record"] for one in map(json.loads, lines) if one["kind"] == kind and wanted(one["record"])]


def _resumed(killed: Program, seen: Seen) -> Program | None:
    """The same command with --resume, after its end; None if it did not end well."""
    again = (*COMMANDS[seen.kill.command], "--resume")
    program = Program(killed.folder, killed.variables, *again, output="resumed.json")
    _, err = program.wait()
    if program.process.returncode == 0:
        return program
    seen.faults.append(f"--resume ended with {program.process.returncode}: {err[-500:]}")
    return None


def limits_of(path: Path) -> Limits:
    """(fits, fails) of each device in a probe's file."""
    found = Probe.model_validate_json(path.read_text()).probes
    return tuple((p.batch_limit.fits, p.batch_limit.fails) for p in found if p.batch_limit)
