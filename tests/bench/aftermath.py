"""The checks after a kill: processes, exit code, files, and what `--resume` ends with."""

from __future__ import annotations

import json
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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
# What is told of a point, a trial, a window or a round that is over.
_FINISHED = re.compile(r"(?m)^(?:(?:… )?GPU:\d (?:batch|tried) \d+|window \d+ of \d+|round \d+ \[[^]]*\]): .*$")


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
    told = set(_FINISHED.findall(err))
    seen.told = len(told)
    if _found(program.output) is None:  # else a whole result was written, however the program ended then
        _resume(program, seen, told, answers)


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


def _resume(killed: Program, seen: Seen, told: set[str], answers: Answers) -> None:
    """Checks that `--resume` tells again what was told to be finished, and ends as if nothing had happened."""
    again = (*COMMANDS[seen.kill.command], "--resume")
    program = Program(killed.folder, killed.variables, *again, output="resumed.json")
    _, err = program.wait()
    if program.process.returncode:
        seen.faults.append(f"--resume ended with {program.process.returncode}: {err[-500:]}")
        return
    lost = sorted(told - set(_FINISHED.findall(err)))
    seen.expect(not lost, f"told to be finished, and lost: {lost}")
    found = _found(program.output)
    wanted = {"probe": answers.limits, "balance": answers.split}.get(seen.kill.command, found)
    seen.expect(found is not None and found == wanted, f"--resume found {found}, and not {wanted}")
    seen.resumed = not seen.faults


def _found(path: Path) -> Limits | tuple[int, ...] | None:
    """What a whole result found: a probe's limits, or the split that was run; None if it is not whole."""
    result = read_result(path) if path.exists() else None
    if isinstance(result, Probe):
        return limits_of(path) if result.complete else None
    run = result.balance.run if isinstance(result, Plan) and result.balance else result
    return run.batches if isinstance(run, Run) and run.complete else None


def limits_of(path: Path) -> Limits:
    """(fits, fails) of each device in a probe's file."""
    found = Probe.model_validate_json(path.read_text()).probes
    return tuple((p.batch_limit.fits, p.batch_limit.fails) for p in found if p.batch_limit)
