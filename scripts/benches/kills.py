"""Kills probe, balance and run on a fast profile, each at a random moment.

`scripts/bench kills [N [SEED]]` runs it.

The parent or one of its workers gets TERM, KILL or INT. Nothing may be left running, no file may be
half written, what was reported as finished must be on disk, and `--resume` must end like an
undisturbed command: a probe with the same limits, a balance with the same split, a balance and a
run whole and including all that was finished before. `balance` begins with a kept probe, as its own
is a probe like any other.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from gpubalance.results.records import read_result
from scripts.benches.killed import (
    COMMANDS,
    ENGINE,
    PROBE,
    SIGNALS,
    VICTIMS,
    Found,
    Kill,
    Program,
)
from tests.cli.program import own
from tests.stand_in import engine
from tests.support import forks

_TOLD_EVERY = 100  # it may take hours
_AT_ONCE = 4  # each mostly waits
_ENDS_WITHIN_S = 5.0
# What is told of a point, a trial, a window or a round that is over.
_FINISHED = re.compile(
    r"(?m)^(?:(?:… )?GPU:\d (?:batch|tried) \d+|window \d+ of \d+|round \d+ \[[^]]*\]): .*$"
)


def kills(
    count: int, random: Random, commands: Sequence[str] = tuple(COMMANDS)
) -> Iterator[Kill]:
    """Kills of every command, victim and signal in equal numbers.

    Their order and their moments are random.
    """
    every = [(c, v, s) for c in commands for v in VICTIMS for s in SIGNALS]
    for number in range(count):
        if number % len(every) == 0:
            random.shuffle(every)
        yield Kill(*every[number % len(every)], random.random())


@dataclass
class Undisturbed:
    """Commands without kills: their seconds, what they find, and a state folder with the probe."""

    state: Path
    variables: Mapping[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    found: dict[str, Found | None] = field(default_factory=dict)


def undisturbed(
    folder: Path, variables: Mapping[str, str], commands: Sequence[str]
) -> Undisturbed:
    """Runs each command once in `folder`; a balance gets a kept probe of both devices first."""
    known = Undisturbed(folder / "state", variables)
    if "balance" in commands:
        _by_itself(folder, variables, PROBE)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        ended = pool.map(
            lambda name: _by_itself(folder, variables, COMMANDS[name]), commands
        )
        for name, program in zip(commands, ended, strict=True):
            known.seconds[name], known.found[name] = program.elapsed_s, program.found
    return known


def _by_itself(
    folder: Path, variables: Mapping[str, str], command: Sequence[str]
) -> Program:
    """Runs a command that must end well."""
    program = Program(folder, variables, *command)
    _, err = program.wait()
    if program.process.returncode:
        raise SystemExit(f"{command[0]} does not work by itself: {err}")
    return program


@dataclass
class Seen:
    """What a kill led to.

    `told` has what was reported as finished; `killed` is false if all was over before; `resumed`:
    `--resume` ended well.
    """

    kill: Kill
    killed: bool = False
    told: set[str] = field(default_factory=set)
    gone_s: float = 0.0
    resumed: bool = False
    faults: list[str] = field(default_factory=list)

    def expect(self, right: bool, fault: str) -> None:
        if not right:
            self.faults.append(fault)


def disturb(kill: Kill, known: Undisturbed) -> Seen:
    """Runs and kills a command, and checks what is left."""
    seen = Seen(kill)
    with tempfile.TemporaryDirectory(prefix="gpubalance-kills-") as name:
        folder = Path(name)
        if kill.command == "balance":
            shutil.copytree(known.state, folder / "state")
        program = Program(folder, known.variables, *COMMANDS[kill.command])
        try:
            program.process.wait(kill.part * known.seconds[kill.command])
        except subprocess.TimeoutExpired:
            seen.killed = program.kill(kill.victim, kill.number)
        out, err = program.wait()
        # It was faster than the undisturbed run, which other work had slowed down.
        if not seen.killed:
            known.seconds[kill.command] = min(
                known.seconds[kill.command], program.elapsed_s
            )
        _look_for_orphans(program, seen)
        _look_at_the_end(program, seen, out, err)
        _look_at_files(program, seen)
        seen.told = set(_FINISHED.findall(err))
        # Else a whole result was written, however the program ended then
        if program.found is None:
            _resume(program, seen, known.found[kill.command])
    return seen


def _look_for_orphans(program: Program, seen: Seen) -> None:
    began = time.monotonic()
    while (left := program.processes()) and time.monotonic() - began < _ENDS_WITHIN_S:
        time.sleep(0.05)
    seen.gone_s = time.monotonic() - began
    seen.expect(
        not left, f"{len(left)} processes are left after {_ENDS_WITHIN_S:.0f} s"
    )
    for process in left:
        process.kill()


def _look_at_the_end(program: Program, seen: Seen, out: str, err: str) -> None:
    victim = seen.kill.victim
    number = seen.kill.number
    if (
        seen.killed
        and (victim, number) == ("parent", signal.SIGINT)
        and _in_python(err)
    ):
        return
    code = program.process.returncode
    if not seen.killed:
        right = {0}
    elif victim == "worker":
        right = {0, 6}  # the end of a worker without work is not noticed
    elif number == signal.SIGKILL:
        right = {-number}
    else:
        right = {128 + number, 0}  # 0 when all was over
        if out or not err:  # the signal itself, while Python starts and ends
            right.add(-number)
    seen.expect(code in right, f"exit code {code}: {err[-500:]}")
    seen.expect("Traceback" not in own(err), f"a traceback: {err[-1500:]}")
    seen.expect("a bug in" not in err, f"a bug: {err[-500:]}")


def _in_python(err: str) -> bool:
    """Whether a traceback of Python's start shows that the interrupt came before our first line.

    Python then ends, or prints the interrupt and goes on to run the program as if there were none.
    """
    before_ours = err.split("…", 1)[0]
    return "KeyboardInterrupt" in before_ours and "gpubalance/cli" not in before_ours


def _look_at_files(program: Program, seen: Seen) -> None:
    """Checks that the output, kept probes and all but a journal's last line are whole or absent."""
    state = program.folder / "state"
    for path in [
        *state.rglob("probes/*.json"),
        *program.folder.glob(program.output.name),
    ]:
        try:
            read_result(path)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with it)
            seen.faults.append(f"{path.name} is not whole: {error}")
    for path in state.rglob("*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            try:
                json.loads(line or "{}")
            except ValueError:
                seen.faults.append(f"a line of the journal is not whole: {line[:200]}")
    left = [path.name for path in program.folder.rglob("*.tmp")]
    by_kill = seen.kill.victim == "parent" and seen.kill.number == signal.SIGKILL
    seen.expect(not left or by_kill, f"left behind: {left}")


def _resume(killed: Program, seen: Seen, wanted: Found | None) -> None:
    """Checks that `--resume` tells again what was told to be finished.

    It must end as if nothing had happened.
    """
    program = Program(
        killed.folder, killed.variables, *COMMANDS[seen.kill.command], "--resume"
    )
    _, err = program.wait()
    if program.process.returncode:
        seen.faults.append(
            f"--resume ended with {program.process.returncode}: {err[-500:]}"
        )
        return
    lost = sorted(seen.told - set(_FINISHED.findall(err)))
    seen.expect(not lost, f"told to be finished, and lost: {lost}")
    found = program.found
    seen.expect(
        found is not None and found == wanted,
        f"--resume found {found}, and not {wanted}",
    )
    seen.resumed = not seen.faults


def main(
    count: int = 1000,
    seed: int | None = None,
    variables: Mapping[str, str] = {},
    commands: Sequence[str] = tuple(COMMANDS),
) -> Iterator[str]:
    seed = Random().randrange(2**31) if seed is None else seed
    planned = list(kills(count, Random(seed), commands))
    seen: list[Seen] = []
    with (
        tempfile.TemporaryDirectory(prefix="gpubalance-kills-") as name,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        known = undisturbed(
            Path(name), variables, sorted({kill.command for kill in planned})
        )
        seconds = ", ".join(f"{c} {s:.1f} s" for c, s in known.seconds.items())
        yield (
            f"{count} kills, seed {seed}; undisturbed {seconds}, split {known.found.get('balance')}"
        )
        try:
            for number, one in enumerate(
                pool.map(lambda kill: disturb(kill, known), planned)
            ):
                seen.append(one)
                for fault in one.faults:
                    yield f"FAILED {number} ({one.kill}): {fault[-600:]}"
                if len(seen) % _TOLD_EVERY == 0 and len(seen) < count:
                    yield f"so far {figures(seen)}"
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    yield figures(seen)


def kills_without_tensorflow(
    count: int = 1000, seed: int | None = None
) -> Iterator[str]:
    """The same with workers that do not load TensorFlow, so that an hour has many more kills."""
    with tempfile.TemporaryDirectory(prefix="gpubalance-engine-") as name:
        # No fork may outlive what is killed without being seen: each process is its own.
        yield from main(count, seed, engine(Path(name), ENGINE) | forks.none())


def figures(seen: list[Seen]) -> str:
    hit = Counter(
        f"{one.kill.victim} {one.kill.number.name}" for one in seen if one.killed
    )
    failed = sum(bool(one.faults) for one in seen)
    resumed = Counter(one.kill.command for one in seen if one.resumed)
    return (
        f"{len(seen)} runs, {sum(hit.values())} killed "
        f"({', '.join(f'{n} {what}' for what, n in sorted(hit.items()))}), "
        f"{failed} with a fault; the last process was gone after at most "
        f"{max(one.gone_s for one in seen):.1f} s, "
        f"{sum(len(one.told) for one in seen)} finished points, trials and windows kept, "
        f"resumed: {resumed['probe']} probes to the same limits, {resumed['balance']} "
        "balances to the same split, "
        f"{resumed['run']} runs"
    )
