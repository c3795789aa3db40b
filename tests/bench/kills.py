"""`scripts/bench kills [N [SEED]]`: probe, balance and run on a fast profile, each killed at a random moment.

The parent or one of its workers gets TERM, KILL or INT. Nothing may be left running, no file may be half written, what
was reported as finished must be on disk, and `--resume` must end like an undisturbed command: a probe with the same
limits, a balance with the same split, a balance and a run whole and including all that was finished before. `balance`
begins with a kept probe, as its own is a probe like any other.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from gpubalance.results.plan import Plan
from tests.bench.aftermath import Answers, Seen, limits_of, look
from tests.bench.killed import COMMANDS, ENGINE, PROBE, SIGNALS, VICTIMS, Kill, Program
from tests.stand_in import engine

_TOLD_EVERY = 100  # it may take hours
_AT_ONCE = 4  # each mostly waits


def kills(count: int, random: Random, commands: Sequence[str] = tuple(COMMANDS)) -> Iterator[Kill]:
    """Kills of every command, victim and signal in equal numbers, in random order, at random moments."""
    every = [(c, v, s) for c in commands for v in VICTIMS for s in SIGNALS]
    for number in range(count):
        if number % len(every) == 0:
            random.shuffle(every)
        yield Kill(*every[number % len(every)], random.random())


@dataclass(frozen=True)
class Undisturbed:
    """Commands without kills: the seconds that each takes, what they find, and a state folder with the probe."""

    seconds: dict[str, float]
    answers: Answers
    state: Path
    variables: Mapping[str, str] = field(default_factory=dict)


def undisturbed(folder: Path, variables: Mapping[str, str], commands: Sequence[str]) -> Undisturbed:
    """Runs each command once in `folder`; a balance gets a kept probe of both devices first."""
    if "balance" in commands:
        _by_itself(folder, variables, *PROBE)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        ended = pool.map(lambda name: _by_itself(folder, variables, *COMMANDS[name], "--overwrite"), commands)
        each = dict(zip(commands, ended, strict=True))
    answers = Answers(
        limits_of(each["probe"].output) if "probe" in each else (),
        Plan.model_validate_json(each["balance"].output.read_text()).batches if "balance" in each else (),
    )
    return Undisturbed({c: p.elapsed_s for c, p in each.items()}, answers, folder / "state", variables)


def _by_itself(folder: Path, variables: Mapping[str, str], *arguments: str) -> Program:
    """Runs a command that must end well."""
    program = Program(folder, variables, *arguments, output=f"{arguments[0]}.json")
    _, err = program.wait()
    if program.process.returncode:
        raise SystemExit(f"{arguments[0]} does not work by itself: {err}")
    return program


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
        else:
            seen.killed = False
        printed = program.wait()
        if not seen.killed:  # it was faster than the undisturbed run, which other work had slowed down
            known.seconds[kill.command] = min(known.seconds[kill.command], program.elapsed_s)
        look(program, seen, printed, known.answers)
    return seen


def main(
    count: int = 1000,
    seed: int | None = None,
    variables: Mapping[str, str] = {},
    commands: Sequence[str] = tuple(COMMANDS),
) -> Iterator[str]:
    seed = Random().randrange(2**31) if seed is None else seed
    planned = list(kills(count, Random(seed), commands))
    seen: list[Seen] = []
    with tempfile.TemporaryDirectory(prefix="gpubalance-kills-") as name, ThreadPoolExecutor(_AT_ONCE) as pool:
        known = undisturbed(Path(name), variables, sorted({kill.command for kill in planned}))
        seconds = ", ".join(f"{c} {s:.1f} s" for c, s in known.seconds.items())
        yield f"{count} kills, seed {seed}; undisturbed {seconds}, split {known.answers.split}"
        try:
            for number, one in enumerate(pool.map(lambda kill: disturb(kill, known), planned)):
                seen.append(one)
                for fault in one.faults:
                    yield f"FAILED {number} ({one.kill}): {fault[-600:]}"
                if len(seen) % _TOLD_EVERY == 0 and len(seen) < count:
                    yield f"so far {figures(seen)}"
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    yield figures(seen)


def without_tensorflow(count: int = 1000, seed: int | None = None) -> Iterator[str]:
    """The same with workers that do not load TensorFlow, so that an hour has many more kills."""
    with tempfile.TemporaryDirectory(prefix="gpubalance-engine-") as name:
        yield from main(count, seed, engine(Path(name), ENGINE))


def figures(seen: list[Seen]) -> str:
    hit = Counter(f"{one.kill.victim} {one.kill.number.name}" for one in seen if one.killed)
    failed = sum(bool(one.faults) for one in seen)
    resumed = Counter(one.kill.command for one in seen if one.resumed)
    return (
        f"{len(seen)} runs, {sum(hit.values())} killed "
        f"({', '.join(f'{n} {what}' for what, n in sorted(hit.items()))}), "
        f"{failed} with a fault; the last process was gone after at most {max(one.gone_s for one in seen):.1f} s, "
        f"{sum(one.told for one in seen)} finished points, trials and windows kept, "
        f"resumed: {resumed['probe']} probes to the same limits, {resumed['balance']} balances to the same split, "
        f"{resumed['run']} runs"
    )
