"""Runs the program as a user does, in its own process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil
from pydantic import BaseModel

from gpubalance.results.run import Run
from tests.stand_in import loaded
from tests.support.in_process import HANGS_AFTER_S, placed, program

ROOT = Path(__file__).parents[2]
QUICK_PAIR = str(ROOT / "configs" / "quick-pair.toml")
PROGRAM = str(Path(sys.executable).with_name("gpubalance"))
TINY = f"{ROOT / 'tests' / 'support' / 'tiny.py'}:net"
# Tests are about the program, not about figures.
# So the model is traced at once, and windows are short.
TINY_PAIR = ("--simulate", QUICK_PAIR, "--model", TINY)
SHORT = ("--windows", "1", "--duration", "0.5")
R = TypeVar("R", bound=BaseModel)


def broken(
    folder: Path, name: str = "tensorflow", error: str = "SystemExit('it was loaded')"
) -> dict[str, str]:
    """Variables that put a broken package before the real one.

    They are for commands that must not need it.
    """
    package = folder / "broken" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"raise {error}\n")
    path = [str(package.parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path)}


def typed(line: str) -> tuple[str, ...]:
    """The words of a part of a command line."""
    return tuple(line.split())


def heed_signals() -> None:
    """Undoes what a child would inherit.

    In a shell's background SIGINT is ignored, and under nohup SIGHUP.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def users_variables() -> dict[str, str]:
    """A user's: the test process hides GPUs from its own TensorFlow; a user has not."""
    return {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}


def start(
    line: str, *more: str, environment: Mapping[str, str] = {}, cwd: Path | None = None
) -> subprocess.Popen[str]:
    """The program with the words of this line, and more that may have spaces in them."""
    return subprocess.Popen(
        [PROGRAM, *line.split(), *more],
        stdin=subprocess.DEVNULL,
        preexec_fn=heed_signals,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**users_variables(), "COLUMNS": "80", **environment},
    )


Ended = subprocess.CompletedProcess[str]


def gpubalance(line: str, *more: str, code: int | None = None, **how: Any) -> Ended:
    """The program in a process of its own, which must end with that code, if one is given."""
    process = start(line, *more, **how)
    out, err = process.communicate(timeout=HANGS_AFTER_S)
    assert "Traceback" not in own(err), err
    assert code in (None, process.returncode), err
    return Ended([line, *more], process.returncode, out, err)


def here(
    line: str,
    *more: str,
    code: int | None = None,
    environment: Mapping[str, str] = {},
    cwd: Path | None = None,
) -> Ended:
    """Runs a command in this process, which has already loaded the program.

    Workers are still real processes. The command must end with that exit code, if one is given.

    Not for anything that the program meets at its start: libraries, closed streams, a broken
    TensorFlow, signals.
    """
    with placed(cwd or Path.cwd(), environment), loaded(environment):
        if "CUDA_VISIBLE_DEVICES" not in environment:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        done = program([*line.split(), *more])
    assert "Traceback" not in own(done.err), done.err
    assert code in (None, done.code), done.err
    return Ended([line, *more], done.code, done.out, done.err)


def result_of(kind: type[R], line: str, *more: str, **how: Any) -> R:
    """The result that a command in this process prints, which must end well."""
    return kind.model_validate_json(here(line, *more, "--json", code=0, **how).stdout)


def one_line(text: str) -> str:
    """The text with a space for each line end, as a line may be wrapped anywhere."""
    return " ".join(text.split())


def lines_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """The lines on the process's stderr up to one that matches."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.rstrip("\n"))
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"{pattern} did not come: {lines}")


def children_of(pid: int) -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return children


def lives(process: psutil.Process) -> bool:
    """Whether a process lives. A zombie does not: it waits for a parent, which may not be ours."""
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def interrupted(
    process: subprocess.Popen[str],
    code: int = 130,
    number: signal.Signals = signal.SIGINT,
) -> tuple[str, str]:
    """What a program prints that gets this signal.

    It must end with that code, and none of its children may be left.
    """
    children = children_of(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in own(err), err
    assert process.returncode == code, err
    assert not any(map(lives, children))
    return out, err


def own(err: str) -> str:
    """The program's own lines, without the lines of a worker's log that it quotes."""
    lines = [line for line in err.splitlines() if not line.lstrip().startswith("| ")]
    return "\n".join(lines)


def run_json(*arguments: str) -> dict[str, Any]:
    """The JSON of a short run, which must end well."""
    done = here("run", *arguments, *SHORT, "--json", code=0)
    Run.model_validate_json(done.stdout)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
