"""Feeds the program what a file, a command line, a worker or a driver may say.

`scripts/bench fuzz [N [SEED]]` runs it.

No case may end with a traceback or exit code 1, hang, or let an escape through to the terminal;
memory must not grow.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
import psutil
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import GpubalanceError
from gpubalance.jobs.balance.rounds import TriedSplit
from gpubalance.jobs.journal import Journal
from gpubalance.jobs.measure.figures import measurement
from gpubalance.jobs.measure.measurer import belongs_to
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.window import Sensors, SimultaneousWindows, Workload
from gpubalance.jobs.measure.workload_runner import WorkloadRunner
from gpubalance.jobs.probe.attempts import Attempt
from gpubalance.results.records import read_result
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build, CountFlops, Flops
from gpubalance.workers.worker_group import WorkerGroup
from scripts.benches import fuzz_input as drawn
from scripts.benches.fuzz_input import PAIR, RESULTS, SPLIT
from tests.cli.program import ROOT
from tests.render.golden import told
from tests.stand_in import environment, loaded
from tests.support.asked import asked
from tests.support.in_process import apart, program, within_time

_PAIR_TEXT = (ROOT / "configs/gtx1080ti-gtx1080.toml").read_text()
# Typer and Hypothesis keep something of each case; what a single case takes would still be seen.
_MOST_MORE_BYTES = 300 << 20
_MORE_A_CASE = 40 << 10
_AT_A_TIME = 1000
# How often a case passed the first checks: a campaign that never does tests nothing behind them.
REACHED: Counter[str] = Counter()
_QUIET = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
)
_HUGE = 100 << 20


def results(content: bytes, how: int) -> None:
    """A file's plan, probe or run, read and shown in every way, and used by one command or none."""
    file = Path("given.json")
    file.write_bytes(content)
    given = str(file)
    run = (
        "run",
        "--plan",
        str(file),
        "--simulate",
        PAIR,
        "--duration",
        "0.1",
        "--windows",
        "1",
    )
    commands = (
        ("plan", given),
        ("plan", given, "--json", "--accumulate", "off"),
        ("report", given, "--markdown"),
        ("report", given, "--html", "given.html", "--overwrite"),
        ("compare", str(RESULTS[0]), given),
        ("compare", given, str(RESULTS[-1]), "--json"),
        run,
        (*run, "--model", "mine.py:model"),
    )
    if how < len(commands):
        _use(*commands[how])
    with within_time(), contextlib.suppress(GpubalanceError):
        found = read_result(file)
        for width in (80, 40):
            told(found, "gpubalance run", (), width)


def huge(kind: str, opening: bytes) -> None:
    """A file of 100 MB is refused before it is read."""
    file = Path(f"huge.{kind}")
    file.write_bytes(opening)
    os.truncate(file, _HUGE)
    command = (
        ("plan", str(file)) if kind == "json" else ("devices", "--simulate", str(file))
    )
    assert _use(*command) == 4, f"{command}: not refused"
    file.unlink()


def profiles(content: bytes, command: str) -> None:
    Path("given.toml").write_bytes(content)
    if command:
        _use(
            command,
            "--simulate",
            "given.toml",
            *(("--dry-run",) if command == "probe" else ()),
        )
        return
    with within_time(), contextlib.suppress(GpubalanceError):
        simulated_devices("given.toml")


def configs(content: bytes, command: str) -> None:
    Path("given.toml").write_bytes(content)
    _use(command, "--config", "given.toml")


def messages(content: bytes) -> None:
    """Feeds a parent anything that a worker may say through its pipe."""
    Path("said").write_bytes(content)
    devices, joint = simulated_devices("2")
    build = Build(settings=Settings(model="small"), joint=joint)
    with (
        within_time(),
        contextlib.suppress(GpubalanceError),
        WorkerGroup(devices, build=build, deadline_s=20) as worker_group,
    ):
        worker = asked(worker_group, lambda worker: worker)
        runner = WorkloadRunner(worker, Workload(SPLIT), Sensors())
        window = runner.window(StoppingRule.of_window(Measuring(duration_s=0.01)))
        measurement(SPLIT, [window], runner.sensors, (0, 1))
        REACHED["measurements"] += 1
        worker.ask(CountFlops(), Flops)


def journals(content: bytes) -> None:
    """Resumes from a journal with any content: `--resume` must read the whole records."""
    journal = Journal("fuzz", "a test", resume=False)
    journal.close()
    journal.path.write_bytes(content)
    journal = Journal("fuzz", "a test", resume=True)
    journal.load_all(Attempt)
    taken = journal.load("key", SimultaneousWindows)
    if taken is not None and belongs_to(taken.windows[0], Workload(SPLIT)):
        measurement(SPLIT, taken.windows[:1], Sensors(), (0, 1))
        REACHED["windows"] += 1
    REACHED["rounds"] += journal.load("key", TriedSplit) is not None
    journal.close()


def _use(*arguments: str) -> int:
    # A command line can't have it
    arguments = tuple(word.replace("\0", "") for word in arguments)
    Path(PAIR).write_text(_PAIR_TEXT)
    done = program(arguments)
    done.check(*arguments)
    return done.code


def command_lines(words: list[str]) -> None:
    _use(*words)


def device_names(script: str, command: tuple[str, ...]) -> None:
    """Runs a command beside a driver that says what this script of the NVML stand-in does."""
    Path("said").write_bytes(b"")
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it would hide them
    with loaded(environment(Path(), script)):
        program(command).check(*command)


_DEVICE_COMMANDS = (
    *(("devices",), ("devices", "--json"), ("plan", "--gpus", "GPU-1080")),
    ("run", "--gpus", "0", "1", "--duration", "0.1"),
)

# Each with its part of the cases, and what its arguments are drawn from.
Strategies = tuple[st.SearchStrategy[Any], ...]
TARGETS: dict[str, tuple[float, Callable[..., None], Strategies]] = {
    "results": (0.25, results, (drawn.files, st.integers(0, 23))),
    "profiles": (
        0.15,
        profiles,
        (drawn.profiles, st.sampled_from(["", "", "devices", "probe"])),
    ),
    "configs": (
        0.10,
        configs,
        (drawn.configs, st.sampled_from(["plan", "devices", "run"])),
    ),
    "command lines": (0.20, command_lines, (drawn.command_lines(),)),
    "worker messages": (0.15, messages, (drawn.messages,)),
    "journals": (0.10, journals, (drawn.journals,)),
    "device names": (
        0.05,
        device_names,
        (drawn.scripts(), st.sampled_from(_DEVICE_COMMANDS)),
    ),
}


def run(
    check: Callable[..., None], strategies: Strategies, count: int, seed: int
) -> tuple[int, str]:
    """The number of cases, and what is wrong with the smallest bad one.

    It runs in parts, as Hypothesis keeps a run's cases.
    """
    cases = 0

    def test(values: tuple[Any, ...]) -> None:
        nonlocal cases
        cases += 1
        check(*values)

    for part, begin in enumerate(range(0, max(1, count), _AT_A_TIME)):
        configured = settings(
            _QUIET, max_examples=min(_AT_A_TIME, max(1, count - begin))
        )
        try:
            hypothesis.seed(seed + part)(
                configured(given(st.tuples(*strategies))(test))
            )()
        except Exception as error:  # noqa: BLE001  (any error is a finding)
            where = (
                ""
                if isinstance(error, AssertionError)
                else "".join(traceback.format_exception(error)[-6:])
            )
            return (
                cases,
                f"{error} {' '.join(getattr(error, '__notes__', []))[-3000:]} {where}",
            )
    return cases, ""


def main(count: int = 100_000, seed: int | None = None) -> Iterator[str]:
    seed = Random().randrange(2**31) if seed is None else seed
    yield f"{count} cases, seed {seed}"
    began = time.monotonic()
    cases = 0
    faults = 0
    process = psutil.Process()
    with (
        tempfile.TemporaryDirectory(prefix="gpubalance-fuzz-") as name,
        apart(Path(name), "cat said 2>/dev/null"),
    ):
        Path("said").write_bytes(b"")
        Path(PAIR).write_text(_PAIR_TEXT)
        for warm in (
            ("devices", "--simulate", PAIR),
            ("report", str(RESULTS[0]), "--html", "given.html"),
        ):
            program(warm)  # what is loaded only once is not a leak
        for kind, opening in (
            ("json", b'{"kind": "plan", "x": "'),
            ("toml", b"x = 1\n#"),
            ("json", b" "),
        ):
            huge(kind, opening)
        before = process.memory_info().rss
        for target, (part, check, strategies) in TARGETS.items():
            done, fault = run(check, strategies, round(part * count), seed)
            cases += done
            faults += bool(fault)
            yield f"{target}: {done} cases" + (f"\nFAILED {fault}" if fault else "")
        gc.collect()
        more = process.memory_info().rss - before
    if more > _MOST_MORE_BYTES + _MORE_A_CASE * cases:
        faults += 1
        yield f"FAILED memory grew by {more >> 20} MiB"
    took = time.monotonic() - began
    reached = ", ".join(
        f"{number_of} {what}" for what, number_of in sorted(REACHED.items())
    )
    yield (
        f"{cases} cases in {took:.0f} s, {faults} with a fault; memory grew by {more >> 20} MiB; "
        f"accepted: {reached}"
    )
