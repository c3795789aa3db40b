"""`scripts/bench kills [N [SEED]]`: probe, balance and run on a fast profile, each killed at a random moment.

The parent or a child of its gets TERM, KILL or INT. Nothing may be left running, no file may be half, what was told to
be finished must be on disk, and `--resume` must end as an undisturbed command does: a probe with the same limits, a
run and a balance whole, with all that was finished before as part of it. `balance` begins with a probe that is kept:
its own is a probe as any other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil

from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_result
from gpubalance.results.run import Run
from tests.cli.program import start

# Steps of a millisecond; GPU:0 holds 32 samples and not 40, GPU:1 24 and not 32.
PROFILE = """
[[device]]
name = "Fast A"
alpha_s = 0.001
beta_s = 0.00002
memory = "50 MiB"
base_memory = "16 MiB"
memory_per_sample = "1 MiB"

[[device]]
name = "Fast B"
alpha_s = 0.001
beta_s = 0.00004
memory = "42 MiB"
base_memory = "16 MiB"
memory_per_sample = "1 MiB"
"""
Limits = tuple[tuple[int | None, int | None], ...]

_PROBE = ("probe", "--duration", "0.05")
COMMANDS = {
    "probe": (*_PROBE, "--gpus", "0"),
    "balance": ("balance", "--round-duration", "0.2", "--rounds", "2", "--duration", "0.2", "--windows", "2"),
    "run": ("run", "--batches", "8", "8", "--duration", "0.2", "--windows", "12"),
}
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
VICTIMS = ("parent", "child")
_MARK = "GPUBALANCE_CAMPAIGN"
_ENDS_WITHIN_S = 5.0
_LASTS_AT_MOST_S = 300.0
_AT_ONCE = 2  # each waits about as long as it works
_TOLD = re.compile(r"(?m)^(?:… )?GPU:\d (?:batch|tried) \d+: ")
_WINDOW = re.compile(r"(?m)^window \d+ of \d+: ")
_ROUND = re.compile(r"(?m)^round \d+ \[[^]]*\]: (?!out of memory)")


@dataclass(frozen=True)
class Kill:
    """What is killed: `part` of the time that an undisturbed command takes has passed then."""

    command: str
    victim: str
    number: signal.Signals
    part: float

    def __str__(self) -> str:
        return f"{self.command}, {self.number.name} to the {self.victim} at {self.part:.3f}"


@dataclass
class Seen:
    """What came of it. `told` things were said to be finished; `killed` is false where all was over before; `resumed`
    is the split that `--resume` ended with.
    """

    kill: Kill
    killed: bool = True
    told: int = 0
    gone_s: float = 0.0
    resumed: tuple[int, ...] | None = None
    faults: list[str] = field(default_factory=list)

    def expect(self, right: bool, fault: str) -> None:
        if not right:
            self.faults.append(fault)


def kills(count: int, random: Random) -> Iterator[Kill]:
    """Every command, victim and signal as often as any other, in random order, at random moments."""
    every = [(c, v, s) for c in COMMANDS for v in VICTIMS for s in SIGNALS]
    for number in range(count):
        if number % len(every) == 0:
            random.shuffle(every)
        yield Kill(*every[number % len(every)], random.random())


class Program:
    """One use of the program, in a folder of its own. All its processes carry a mark that no other has."""

    def __init__(self, folder: Path, *arguments: str, output: str = "result.json") -> None:
        self.folder, self.output = folder, folder / output
        self._mark = uuid.uuid4().hex
        profile = folder / "fast.toml"
        profile.write_text(PROFILE)
        self._began = time.monotonic()
        self.process = start(
            *(*arguments, "--simulate", str(profile), "-o", str(self.output), "--json"),
            environment={"XDG_STATE_HOME": str(folder / "state"), _MARK: self._mark, "TMPDIR": str(folder)},
        )

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def processes(self) -> list[psutil.Process]:
        """All that live and carry the mark; a zombie is dead."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def wait(self) -> tuple[str, str]:
        """What it printed, when it has ended by itself."""
        return self.process.communicate(timeout=_LASTS_AT_MOST_S)

    def kill(self, victim: str, number: signal.Signals) -> bool:
        """Whether there was somebody to kill: a child may not be there yet, and is waited for."""
        while self.process.poll() is None:
            others = [p for p in self.processes() if p.pid != self.process.pid]
            if victim == "parent" or others:
                chosen = self.process.pid if victim == "parent" else min(others, key=lambda p: p.pid).pid
                try:
                    os.kill(chosen, number)
                except ProcessLookupError:
                    continue
                return True
            time.sleep(0.02)
        return False


@dataclass(frozen=True)
class Undisturbed:
    """What happens by itself: the seconds that each command takes, GPU:0's limits, a state folder with the probe."""

    seconds: dict[str, float]
    limits: Limits
    state: Path


def undisturbed(folder: Path) -> Undisturbed:
    """Runs each of the commands once in `folder`, and before them the probe of both devices that is kept."""
    both = _by_itself(folder, *_PROBE)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        seconds = pool.map(lambda command: by_itself(folder, command).elapsed_s, COMMANDS)
        return Undisturbed(dict(zip(COMMANDS, seconds, strict=True)), limits_of(both.output), folder / "state")


def by_itself(folder: Path, command: str) -> Program:
    """One of the commands, which has ended well."""
    return _by_itself(folder, *COMMANDS[command], "--overwrite")


def _by_itself(folder: Path, *arguments: str) -> Program:
    program = Program(folder, *arguments, output=f"{arguments[0]}.json")
    _, err = program.wait()
    if program.process.returncode:
        raise SystemExit(f"{arguments[0]} does not work by itself: {err}")
    return program


def disturb(kill: Kill, known: Undisturbed) -> Seen:
    """Kills one, and looks at what is left."""
    seen = Seen(kill)
    with tempfile.TemporaryDirectory(prefix="gpubalance-kills-") as name:
        folder = Path(name)
        if kill.command == "balance":
            shutil.copytree(known.state, folder / "state")
        program = Program(folder, *COMMANDS[kill.command])
        try:
            program.process.wait(kill.part * known.seconds[kill.command])
        except subprocess.TimeoutExpired:
            seen.killed = program.kill(kill.victim, kill.number)
        else:
            seen.killed = False
        _, err = program.wait()
        if not seen.killed:  # faster than what the moments were taken from, which other work had slowed down
            known.seconds[kill.command] = min(known.seconds[kill.command], program.elapsed_s)
        _look_for_orphans(program, seen)
        _look_at_the_end(program, seen, err)
        _look_at_files(program, seen)
        if kill.command == "probe":
            _look_at_what_was_told(program, seen, err)
            _resume_probe(program.folder, seen, known.limits[:1])
        elif not program.output.exists() or program.process.returncode:
            _resume_joint(program, seen, err)
    return seen


def _look_for_orphans(program: Program, seen: Seen) -> None:
    began = time.monotonic()
    while (left := program.processes()) and time.monotonic() - began < _ENDS_WITHIN_S:
        time.sleep(0.05)
    seen.gone_s = time.monotonic() - began
    seen.expect(not left, f"{len(left)} processes are left after {_ENDS_WITHIN_S:.0f} s")
    for process in left:
        process.kill()


def _look_at_the_end(program: Program, seen: Seen, err: str) -> None:
    code, number = program.process.returncode, int(seen.kill.number)
    if not seen.killed:
        right = {0}
    elif seen.kill.victim == "child":
        right = {0, 6}  # one that waited for its work is not missed
    elif seen.kill.number == signal.SIGKILL:
        right = {-number}
    else:
        right = {128 + number, -number, 0}  # the signal itself before Python has begun; 0 when all was over
    seen.expect(code in right, f"exit code {code}: {err[-500:]}")
    own = "\n".join(line for line in err.splitlines() if not line.startswith("  | "))  # without a child's log
    seen.expect("Traceback" not in own, f"a traceback: {err[-1500:]}")
    seen.expect("a bug in" not in err, f"a bug: {err[-500:]}")


def _look_at_files(program: Program, seen: Seen) -> None:
    """Whole or absent: the output, the probes that are kept, each line of a journal but the last."""
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
    """Each point and trial that was told is in the journal, or, when the probe is over, in its result."""
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


def _resume_probe(folder: Path, seen: Seen, limits: Limits) -> None:
    program = _resumed(folder, seen)
    if program is not None:
        found = limits_of(program.output)
        seen.expect(found == limits, f"--resume found {found}, and not {limits}")


def _resume_joint(killed: Program, seen: Seen, err: str) -> None:
    """Each window and round that was told is in what `--resume` ends with, which is whole."""
    windows = _kept(killed.folder, "KeptWindow", lambda record: record["name"] == "")
    rounds = _kept(killed.folder, "KeptRound", lambda record: record["measured"] is not None)
    told = len(_WINDOW.findall(err)), len(_ROUND.findall(err))
    seen.told = sum(told)
    seen.expect(len(windows) >= told[0], f"{told[0]} windows were told, and {len(windows)} are kept")
    seen.expect(len(rounds) >= told[1], f"{told[1]} rounds were told, and {len(rounds)} are kept")
    program = _resumed(killed.folder, seen)
    if program is None:
        return
    result = read_result(program.output)
    run = result.balance.run if isinstance(result, Plan) and result.balance else result
    if not isinstance(run, Run) or not run.complete:
        seen.faults.append("--resume ended without a whole run")
        return
    seen.resumed = run.batches
    times_s = [s["seconds"] / s["steps"] for w in windows if tuple(w["batches"]) == run.batches for s in w["samples"]]
    found_s = run.step_time_s.samples[: len(times_s)]
    seen.expect(
        len(found_s) == len(times_s) and all(abs(a / b - 1) < 1e-5 for a, b in zip(found_s, times_s, strict=True)),
        "windows that were kept are not in what --resume ended with",
    )
    if isinstance(result, Plan) and result.balance:
        again = [list(one.batches) for one in result.balance.rounds if one.measured is not None]
        seen.expect(
            again[: len(rounds)] == [one["batches"] for one in rounds],
            f"--resume ended with rounds {again}, and {rounds} were kept",
        )


def _kept(folder: Path, kind: str, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The records of that kind in the journals, but for a last line that was cut off."""
    lines = [line for path in folder.rglob("*.jsonl") for line in path.read_text().split("\n")[:-1] if line]
    return [one["record"] for one in map(json.loads, lines) if one["kind"] == kind and wanted(one["record"])]


def _resumed(folder: Path, seen: Seen) -> Program | None:
    """The same command with --resume, which has ended; None where it did not end well."""
    program = Program(folder, *COMMANDS[seen.kill.command], "--resume", output="resumed.json")
    _, err = program.wait()
    if program.process.returncode == 0:
        return program
    seen.faults.append(f"--resume ended with {program.process.returncode}: {err[-500:]}")
    return None


def limits_of(path: Path) -> Limits:
    """What fits and what does not, of each device in a probe's file."""
    found = Probe.model_validate_json(path.read_text()).probes
    return tuple((p.batch_limit.fits, p.batch_limit.fails) for p in found if p.batch_limit)


def main(count: int = 1000, seed: int | None = None) -> Iterator[str]:
    seed = Random().randrange(2**31) if seed is None else seed
    seen: list[Seen] = []
    with tempfile.TemporaryDirectory(prefix="gpubalance-kills-") as name, ThreadPoolExecutor(_AT_ONCE) as pool:
        known = undisturbed(Path(name))
        yield f"{count} kills, seed {seed}; undisturbed {', '.join(f'{c} {s:.1f} s' for c, s in known.seconds.items())}"
        try:
            for number, one in enumerate(pool.map(lambda kill: disturb(kill, known), kills(count, Random(seed)))):
                seen.append(one)
                for fault in one.faults:
                    yield f"FAILED {number} ({one.kill}): {fault[-600:]}"
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    yield figures(seen)


def figures(seen: list[Seen]) -> str:
    hit = Counter(f"{one.kill.victim} {one.kill.number.name}" for one in seen if one.killed)
    failed = sum(bool(one.faults) for one in seen)
    probes = sum(one.kill.command == "probe" for one in seen)
    splits = [one.resumed for one in seen if one.resumed and one.kill.command == "balance"]
    usual, same = Counter(splits).most_common(1)[0] if splits else ((), 0)
    runs = sum(one.kill.command == "run" and one.resumed is not None for one in seen)
    return (
        f"{len(seen)} runs, {sum(hit.values())} killed "
        f"({', '.join(f'{n} {what}' for what, n in sorted(hit.items()))}), "
        f"{failed} with a fault; the last process was gone after at most {max(one.gone_s for one in seen):.1f} s, "
        f"{sum(one.told for one in seen)} finished points, trials and windows kept, "
        f"resumed: {probes} probes to the same limits, {runs} runs, {len(splits)} balances, "
        f"{same} of them to {'/'.join(map(str, usual))}"
    )
