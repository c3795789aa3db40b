"""What torch_ddp.py gains on two unlike parts of this machine's cores, by the plan of torch_curve.py.

Each rank has a quota of a core. In turns a joint step is timed, with which the plan predicts, and
the split and even shares are trained.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpubalance.examples import FOLDER
from gpubalance.numbers.stats import median
from scripts.benches.quotas import NoQuotasError, group_with, joining
from tests.cli.program import PROGRAM

_PARTS = {"fast": 0.8, "slow": 0.4}  # of a core, by device
_GLOBAL_BATCH = 192
_CURVE = ("--multiple", "16", "--max-batch", "192")
_TURNS = 3
_EPOCHS = 4  # the first one warms up
_VARIABLES = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}

Slowed = Sequence[Sequence[str]]  # the words before each rank's command


def main(runs: int = 3) -> Iterator[str]:
    """A line for each run from curve to training."""
    if find_spec("torch") is None:
        yield "PyTorch is not installed here: pip install torch==2.13.0+cpu"
        return
    with ExitStack() as stack:
        slowed = []
        try:
            for core, (name, part) in enumerate(_PARTS.items()):
                group = stack.enter_context(group_with(f"{name}{os.getpid()}", part))
                one_core = ("taskset", "-c", str(core % (os.cpu_count() or 1)))
                slowed.append([*joining(group), *one_core])
        except NoQuotasError as error:
            yield str(error)
            return
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                yield _from_curve_to_training(slowed, Path(folder) / "times.csv")


def _from_curve_to_training(slowed: Slowed, table: Path) -> str:
    """Turns of a joint step's times for the table of devices alone, even shares, and the split."""
    for name, words in zip(_PARTS, slowed, strict=True):
        command = [sys.executable, str(FOLDER / "torch_curve.py"), str(table)]
        _start(words, [*command, *_CURVE, "--prefix", name]).communicate()
    alone = table.read_text()
    plan = _plan(table)
    splits = [plan["batches"]]
    over_even, over_predicted = [], []
    for _ in range(_TURNS):
        table.write_text(alone)  # this machine changes its speed from minute to minute
        _train(slowed, splits[-1], "--times", str(table))
        plan = _plan(table)
        splits.append(plan["batches"])
        rate = _train(slowed, splits[-1])
        over_predicted.append(rate / plan["predicted"]["throughput"])
        over_even.append(rate / _train(slowed, [_GLOBAL_BATCH // 2] * 2))
    planned = ", ".join("/".join(map(str, batches)) for batches in splits)
    return (
        f"{median(over_even):.2f} × even shares ({_listed(over_even)}), "
        f"{median(over_predicted):.3f} of the prediction ({_listed(over_predicted)}), "
        f"with {planned}"
    )


def _listed(ratios: Sequence[float]) -> str:
    return ", ".join(f"{ratio:.3f}" for ratio in ratios)


def _plan(table: Path) -> Any:
    words = ["plan", "--curve", str(table), "--global-batch", str(_GLOBAL_BATCH)]
    return json.loads(subprocess.check_output([PROGRAM, *words, "--json"]))


def _train(slowed: Slowed, batches: Sequence[int], *more: str) -> float:
    """Samples per second in the epochs after the first one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(FOLDER / "torch_ddp.py"), "--epochs", str(_EPOCHS)]
    command += ["--batches", *map(str, batches), *more]
    ranks = []
    for rank, words in enumerate(slowed):
        place = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
        ranks.append(_start(words, command, place))
    printed = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("a rank failed: see above")
    return median([float(rate) for rate in re.findall(r": (\S+) sam", printed[0])[1:]])


def _start(
    slowed: Sequence[str],
    command: Sequence[str],
    place: Mapping[str, int] | None = None,
) -> subprocess.Popen[str]:
    own = {name: str(value) for name, value in (place or {}).items()}
    variables = {**os.environ, **_VARIABLES, **own}
    words = [*slowed, *command]
    return subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True)
