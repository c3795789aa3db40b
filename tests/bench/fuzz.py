"""`scripts/bench fuzz [N [SEED]]`: feeds the program what a file, a command line, a worker or a driver may say.

No case may end with a traceback or exit code 1, hang, or let an escape through to the terminal; memory must not grow.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
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

from gpubalance.cli.app import app
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import BadInput, GpubalanceError
from gpubalance.jobs.balance.together import TriedSplit
from gpubalance.jobs.events import Event
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.timings import Window
from gpubalance.jobs.probe.bench import Attempt
from gpubalance.settings.device import JointProfile
from gpubalance.settings.requests import Settings
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import CountFlops, Flops
from gpubalance.workers.worker import Worker
from tests.bench.fuzz_input import (
    PROFILES,
    RESULTS,
    SPLIT,
    any_json,
    mutated_json,
    mutated_toml,
    number,
    scripts,
    spoiled_entry,
    spoiled_talk,
    text,
)
from tests.bench.in_process import apart, program, within_time
from tests.cli.program import ROOT
from tests.stand_in import TWO_UNLIKE_GPUS, environment

# In the current folder, and made again for each case: a case may name it as the file to write.
PAIR = "pair.toml"
_PAIR_TEXT = (ROOT / "configs/gtx1080ti-gtx1080.toml").read_text()
# Typer and Hypothesis keep something of each case; what a single case takes would still be seen.
_MOST_MORE_BYTES, _MORE_A_CASE = 300 << 20, 40 << 10
_AT_A_TIME = 1000
# How often a case passed the first checks: a campaign that never does tests nothing behind them.
REACHED: Counter[str] = Counter()
_HUGE = 100 << 20
_CONFIG = (
    'simulate = "configs/quick-pair.toml"\nquiet = true\n[run]\ngpus = [0, 1]\nbatches = [120, 80]\n[plan]\nsync = 0.01'
)


def _flags() -> dict[str, list[str]]:
    """Every flag of every command, as the program has them."""
    import typer

    group: Any = typer.main.get_command(app)
    return {
        name: sorted({flag for param in command.params for flag in (*param.opts, *param.secondary_opts)})
        for name, command in group.commands.items()
    }


FLAGS = _flags()
# These write into the home folder (a temporary one here) and start a shell to find out which it is.
_NOT_THESE = ("--install-completion", "--show-completion")
_KEYS = tuple(
    sorted({flag.lstrip("-") for flags in FLAGS.values() for flag in flags} - {"verbose", "install-completion"})
)
_PROFILE_KEYS = ("name", "alpha_s", "beta_s", "memory", "base_memory", "memory_per_sample", "noise", "drift", "sync_s")


def results(content: bytes, how: int) -> None:
    """A plan, a probe or a run from a file."""
    file = Path("given.json")
    file.write_bytes(content)
    quick = ("--duration", "0.1", "--windows", "1")
    commands = (
        ("plan", str(file)),
        ("plan", str(file), "--json", "--accumulate", "off"),
        ("report", str(file), "--markdown"),
        ("report", str(file), "--html", "given.html", "--overwrite"),
        ("compare", str(RESULTS[0]), str(file)),
        ("compare", str(file), str(RESULTS[-1]), "--json"),
        ("run", "--plan", str(file), "--simulate", PAIR, *quick),
        ("run", "--plan", str(file), "--simulate", PAIR, *quick, "--model", "mine.py:model"),
    )
    if how < len(commands):
        _use(*commands[how])
    _read_and_show(file)


def _read_and_show(file: Path) -> None:
    """Shows a file that can be read in every way."""
    from gpubalance.results.records import read_result
    from tests.render.golden import told

    with within_time(), contextlib.suppress(GpubalanceError):
        found = read_result(file)
        for width in (80, 40):
            told(found, "gpubalance run", (), width)


def huge(kind: str, opening: bytes) -> None:
    """A file of 100 MB is refused before it is read."""
    file = Path(f"huge.{kind}")
    file.write_bytes(opening)
    os.truncate(file, _HUGE)
    _use(*{"json": ("plan", str(file)), "toml": ("devices", "--simulate", str(file))}[kind], codes=(4,))
    file.unlink()


def profiles(content: bytes, command: str) -> None:
    Path("given.toml").write_bytes(content)
    if command:
        _use(command, "--simulate", "given.toml", *(("--dry-run",) if command == "probe" else ()))
        return
    with within_time(), contextlib.suppress(GpubalanceError):
        simulated_devices("given.toml")


def configs(content: bytes, command: str) -> None:
    Path("given.toml").write_bytes(content)
    _use(command, "--config", "given.toml")


def command_lines(command: str, words: list[str]) -> None:
    _use(command, *words)


def messages(content: bytes) -> None:
    """Feeds a parent anything that a worker may say through its pipe."""
    Path("said").write_bytes(content)
    devices, joint = simulated_devices("2")
    with within_time(), contextlib.suppress(GpubalanceError), Worker(devices, deadline_s=20) as worker:
        worker.open(Settings(model="small"), joint or JointProfile(), seed=0)
        series = Series(Shares((8, 8)))
        series.add(series.window(worker, Length.exactly(0.0)))
        series.measurement((0, 1))
        REACHED["measurements"] += 1
        worker.ask(CountFlops(), Flops)


def journals(content: bytes) -> None:
    """Resumes from a journal with any content: `--resume` must read the whole records."""
    journal = Journal("fuzz", "a test", resume=False)
    journal.close()
    journal.path.write_bytes(content)
    journal = Journal("fuzz", "a test", resume=True)
    journal.left(Attempt)
    once, series = Once(journal, list[Event]().append), Series(SPLIT)
    window = once.had("key", Window)
    if window is not None:
        with contextlib.suppress(BadInput):
            series.add(window)
            series.measurement((0, 1))
            REACHED["windows"] += 1
    REACHED["rounds"] += once.had("key", TriedSplit) is not None
    journal.close()


def _use(*arguments: str, codes: tuple[int, ...] = ()) -> None:
    arguments = tuple(word.replace("\0", "") for word in arguments)  # a command line can't have it
    Path(PAIR).write_text(_PAIR_TEXT)
    done = program(arguments)
    done.check(*arguments)
    assert not codes or done.code in codes, f"{arguments}: exit code {done.code}: {done.err[-500:]}"


def _word() -> st.SearchStrategy[str]:
    """A value on a command line. Paths are in the current folder only, to touch nobody's files."""
    values = [
        *["0", "1", "0,1", "820", "568", "2", "small", "GPU-1080", "auto", "512MiB", "nan", "1e400", "--", "=", ","],
        PAIR,
    ]
    plain = text.map(lambda word: word.replace("/", "|"))
    return st.one_of(st.sampled_from(values), plain, number.map(str), st.binary(max_size=6).map(_as_argument))


def _as_argument(content: bytes) -> str:
    return os.fsdecode(content.replace(b"/", b""))


@st.composite
def command_line(draw: Any) -> tuple[str, list[str]]:
    command = draw(st.sampled_from(sorted(FLAGS)))
    known = [flag for flag in FLAGS[command] if flag not in _NOT_THESE]
    words: list[str] = ["--simulate", draw(st.sampled_from([PAIR, "2"]))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 5))):
        flag = draw(st.sampled_from([*known, "--no-such", ""]))
        values = draw(st.lists(_word(), max_size=2))
        words += [f"{flag}={values[0]}"] if values and draw(st.integers(0, 3)) == 0 else [flag, *values]
    return command, words


_MESSAGES = st.one_of(any_json(), spoiled_talk(), spoiled_talk(), st.binary(max_size=200))
_JOURNALS = st.lists(any_json() | spoiled_entry() | spoiled_entry(), max_size=4).map(b"\n".join)

Target = tuple[str, float, Callable[..., None], tuple[st.SearchStrategy[Any], ...]]
TARGETS: tuple[Target, ...] = (
    ("results", 0.25, results, (st.one_of(mutated_json(), mutated_json(), any_json()), st.integers(0, 23))),
    (
        "profiles",
        0.15,
        profiles,
        (
            mutated_toml(tuple(path.read_text() for path in PROFILES), _PROFILE_KEYS),
            st.sampled_from(["", "", "devices", "probe"]),
        ),
    ),
    ("configs", 0.10, configs, (mutated_toml((_CONFIG,), _KEYS), st.sampled_from(["plan", "devices", "run"]))),
    ("command lines", 0.20, lambda line: command_lines(*line), (command_line(),)),
    ("worker messages", 0.15, messages, (_MESSAGES,)),
    ("journals", 0.10, journals, (_JOURNALS,)),
)
_NAMES = 0.05


def run(target: Target, count: int, seed: int) -> tuple[int, str]:
    """(number of cases, what is wrong with the smallest bad one). Runs in parts, as Hypothesis keeps a run's cases."""
    cases, fault = 0, ""
    for part, begin in enumerate(range(0, count, _AT_A_TIME)):
        done, fault = _some(target, min(_AT_A_TIME, count - begin), seed + part)
        cases += done
        if fault:
            break
    return cases, fault


def _some(target: Target, count: int, seed: int) -> tuple[int, str]:
    _, _, check, strategies = target
    cases = 0

    def test(values: tuple[Any, ...]) -> None:
        nonlocal cases
        cases += 1
        check(*values)

    configured = settings(
        max_examples=max(1, count),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    try:
        hypothesis.seed(seed)(configured(given(st.tuples(*strategies))(test)))()
    except Exception as error:  # noqa: BLE001  (any error is a finding)
        where = "" if isinstance(error, AssertionError) else "".join(traceback.format_exception(error)[-6:])
        return cases, f"{error} {' '.join(getattr(error, '__notes__', []))[-3000:]} {where}"
    return cases, ""


def main(count: int = 100_000, seed: int | None = None) -> Iterator[str]:
    seed = Random().randrange(2**31) if seed is None else seed
    yield f"{count} cases, seed {seed}"
    began, cases, faults = time.monotonic(), 0, 0
    process = psutil.Process()
    with tempfile.TemporaryDirectory(prefix="gpubalance-fuzz-") as name:
        with apart(Path(name), worker="cat said 2>/dev/null"):
            Path("said").write_bytes(b"")
            Path(PAIR).write_text(_PAIR_TEXT)
            for warm in (("devices", "--simulate", PAIR), ("report", str(RESULTS[0]), "--html", "given.html")):
                program(warm)  # what is loaded only once is not a leak
            for kind, opening in (("json", b'{"kind": "plan", "x": "'), ("toml", b"x = 1\n#"), ("json", b" ")):
                huge(kind, opening)
            before = process.memory_info().rss
            for target in TARGETS:
                done, fault = run(target, round(target[1] * count), seed)
                cases += done
                faults += bool(fault)
                yield f"{target[0]}: {done} cases" + (f"\nFAILED {fault}" if fault else "")
            gc.collect()
            more = process.memory_info().rss - before
        for what, number_of, answer in _names(Path(name), round(_NAMES * count), seed):
            cases += number_of
            faults += bool(answer)
            yield f"{what}: {number_of} cases" + (f"\nFAILED {answer}" if answer else "")
    if more > _MOST_MORE_BYTES + _MORE_A_CASE * cases:
        faults += 1
        yield f"FAILED memory grew by {more >> 20} MiB"
    took = time.monotonic() - began
    reached = ", ".join(f"{number_of} {what}" for what, number_of in sorted(REACHED.items()))
    yield f"{cases} cases in {took:.0f} s, {faults} with a fault; memory grew by {more >> 20} MiB; accepted: {reached}"


def _names(folder: Path, count: int, seed: int) -> Iterator[tuple[str, int, str]]:
    """Tests the driver's names in a process with the NVML stand-in, which is loaded once in a process."""
    variables = environment(folder, TWO_UNLIKE_GPUS)
    command = [sys.executable, "-m", "tests.bench.fuzz", str(count), str(seed)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=36_000
    )
    told = done.stdout.splitlines()
    cases = int(told[0]) if told and told[0].isdigit() else 0
    yield "device names", cases, "\n".join(told[1:]) or (done.stderr[-2000:] if done.returncode else "")


_DEVICE_COMMANDS = (
    ("devices",),
    ("devices", "--json"),
    ("run", "--gpus", "0", "1", "--duration", "0.1"),
    ("plan", "--gpus", "GPU-1080"),
)


def device_names(script: str, command: tuple[str, ...]) -> None:
    """Runs a command in a fork of this process, as the stand-in reads its script when it is loaded."""
    Path("nvml.txt").write_text(script, encoding="utf-8", errors="replace")
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["NVML_STAND_IN"] = "nvml.txt"
            program(command).check(*command)
        except BaseException:  # noqa: BLE001  (reported to the parent)
            Path("fault").write_text(traceback.format_exc(), errors="replace")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, Path("fault").read_text() if Path("fault").exists() else f"status {status}"


def fuzz_names(count: int, seed: int) -> None:
    """`python -m tests.bench.fuzz N SEED`, in an environment with the stand-in."""
    target: Target = ("names", 1.0, device_names, (scripts(), st.sampled_from(_DEVICE_COMMANDS)))
    with tempfile.TemporaryDirectory() as folder, apart(Path(folder)):
        cases, fault = run(target, count, seed)
    print(cases)
    print(fault[-3000:])


if __name__ == "__main__":
    fuzz_names(int(sys.argv[1]), int(sys.argv[2]))
