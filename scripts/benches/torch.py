"""What torch_ddp.py gains on two unequal parts of this machine's cores, by the plan of torch_curve.py.

Each rank has a quota of a core. In turns joint steps are timed until the plan no longer changes, as
the guide says, and then its split and even shares are trained.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpubalance.examples import FOLDER
from gpubalance.numbers.stats import median
from scripts.benches.quotas import NoQuotasError, group_with, joining
from tests.cli.program import PROGRAM, ROOT

_PARTS = {"fast": 0.8, "slow": 0.4}  # of a core, by device
# Its steps take many of a quota's periods: a rank that has waited begins with a full quota,
# which may make its own work shorter by a period. Four steps are an epoch.
_GLOBAL_BATCH = 1024
_CURVE = ("--multiple", "64", "--max-batch", "1024")
_TURNS = 5
_EPOCHS = 6  # the first one warms up
_VARIABLES = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}

_RANK = """
import sys
from scripts.benches.torch import rank
rank(sys.argv[1])
"""

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
    """Turns of a joint step's times for the table of devices alone, the split, and even shares."""
    for name, words in zip(_PARTS, slowed, strict=True):
        command = [sys.executable, str(FOLDER / "torch_curve.py"), str(table)]
        _start(words, [*command, *_CURVE, "--prefix", name]).communicate()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank, words in enumerate(slowed):
        place = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
        ranks.append(_start(words, [sys.executable, "-c", _RANK, str(table)], place))
    printed = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("a rank failed: see above")
    turns = json.loads(printed[0].splitlines()[-1])
    planned = ", ".join("/".join(map(str, turn["batches"])) for turn in turns)
    over_even = [turn["rate"] / turn["even"] for turn in turns]
    over_predicted = [turn["rate"] / turn["predicted"] for turn in turns]
    return (
        f"{median(over_even):.2f} × even shares ({_listed(over_even)}), "
        f"{median(over_predicted):.3f} of the prediction ({_listed(over_predicted)}), "
        f"with {planned}"
    )


def _listed(ratios: Sequence[float]) -> str:
    return ", ".join(f"{ratio:.3f}" for ratio in ratios)


def rank(table: str) -> None:
    """What each of the two processes does; the first one plans, and prints the turns."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    alone = Path(table).read_text()
    batches = _shared(lambda: _plan(table))["batches"]
    turns = []
    for _ in range(_TURNS):
        # This machine changes its speed from minute to minute: only this turn's steps count.
        _shared(lambda: Path(table).write_text(alone))
        timed: list[list[int]] = []
        while batches not in timed:
            timed.append(batches)
            _time_joint_steps(Path(table), batches)
            plan = _shared(lambda: _plan(table))
            batches = plan["batches"]
        turn = {"batches": batches, "predicted": plan["predicted"]["throughput"]}
        turn["rate"] = _rate(batches)
        turn["even"] = _rate([_GLOBAL_BATCH // 2] * 2)
        turns.append(turn)
    print(json.dumps(turns), flush=True)
    dist.destroy_process_group()


def _time_joint_steps(table: Path, batches: Sequence[int]) -> None:
    import torch_joint

    with redirect_stdout(io.StringIO()):
        times = torch_joint.measured(batches, batches)
    used = list(zip(torch_joint.devices_of(table), batches, strict=True))
    torch_joint.append(table, used, times)


def _shared(makes: Callable[[], Any]) -> Any:
    """What the first rank makes, on both."""
    import torch.distributed as dist

    made = [makes() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    return made[0]


def _plan(table: str) -> Any:
    words = ["plan", "--curve", table, "--global-batch", str(_GLOBAL_BATCH), "--json"]
    return json.loads(subprocess.check_output([PROGRAM, *words]))


def _rate(batches: Sequence[int]) -> float:
    """Samples per second in the epochs after the first one; 0 on the second rank."""
    import torch_ddp

    printed = io.StringIO()
    with redirect_stdout(printed):
        torch_ddp.train(torch_ddp.dataset(), batches, batches, _EPOCHS)
    rates = re.findall(r": (\S+) samples", printed.getvalue())[1:]
    return median([float(rate) for rate in rates]) if rates else 0.0


def _start(
    slowed: Sequence[str],
    command: Sequence[str],
    place: Mapping[str, int] | None = None,
) -> subprocess.Popen[str]:
    own = {name: str(value) for name, value in (place or {}).items()}
    # Under PYTHONSAFEPATH a program does not find those beside it.
    paths = f"{FOLDER}{os.pathsep}{ROOT}"
    variables = {**os.environ, **_VARIABLES, **own, "PYTHONPATH": paths}
    words = [*slowed, *command]
    return subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True)
