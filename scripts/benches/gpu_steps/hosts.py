"""Two hosts that are truly unlike on one card.

MPS gives the processes of each host a part of the card's multiprocessors.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.benches.gpu_steps.machine import MPS
from scripts.benches.gpu_steps.pair import balanced
from scripts.benches.gpu_steps.place import Figure, Place, StepFailed
from tests.cli.program import ROOT
from tests.support.gpu import parts

_PERCENT = {"alpha": 70, "beta": 30}  # of the card's multiprocessors
_BYTES = 16 << 30  # of each host, and no more than a third of the card
_SAVES_S = 10.0
_BALANCE = "--rounds 4 --round-duration 1.5 --windows 2 --duration 3 --global-batch 512"
_REHEARSED = (
    "--rounds 1 --round-duration 0.2 --windows 1 --duration 0.3 --global-batch 24"
)


def figures(place: Place) -> Iterator[Figure]:
    """The split that `balance` finds for them. Raises StepFailed without MPS.

    The all-reduce is TensorFlow's ring, as NCCL takes no two ranks on one GPU.
    """
    if place.cards and not shutil.which(MPS):
        raise StepFailed(f"`{MPS}` is not there")
    for host in _PERCENT:
        _write_host(place, host)
    via = f"sh {shlex.quote(str(place.folder))}/{{host}}.sh"
    simulate = () if place.cards else ("--simulate", "1")
    devices = (
        *simulate,
        "--hosts",
        ",".join(_PERCENT),
        "--via",
        via,
        "--gpus",
        *(f"{host}:0" for host in _PERCENT),
    )
    options = (_REHEARSED if place.rehearsed else _BALANCE).split()
    limit = (
        ()
        if place.rehearsed
        else ("--time-limit", f"{max(20.0, place.left_s - _SAVES_S):.0f}")
    )
    control = _started_mps(place.folder) if place.cards else None
    try:
        model = ("--model", place.model, "--all-reduce", "ring")
        done = place.program(
            "balance", *devices, *model, *options, *limit, codes=(0, 6, 8)
        )
    finally:
        if control:
            control.kill()
    yield balanced(
        "`balance` ends with" if done.code == 0 else "`balance` came to", done.out
    )


def _write_host(place: Place, host: str) -> None:
    """Writes the script that is the way to a host.

    It runs its words on the host, which here means with these variables.
    """
    exports = [
        f"export {name}={shlex.quote(value)}"
        for name, value in _variables(place, host).items()
    ]
    lines = ["#!/bin/sh", *exports, 'exec "$@"']
    (place.folder / f"{host}.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _variables(place: Place, host: str) -> Mapping[str, str]:
    if not place.cards:
        return {}
    card = place.cards[0]
    limit = min(_BYTES, (card.memory_bytes or _BYTES) // 3)
    of_host = parts.environment(card.uuid, [limit], str(ROOT), mark=f"{host}-")
    return {
        **of_host,
        **_of_mps(place.folder),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(_PERCENT[host]),
    }


def _of_mps(folder: Path) -> dict[str, str]:
    return {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }


def _started_mps(folder: Path) -> subprocess.Popen[bytes]:
    """MPS' control, in the foreground: it ends with this step, and its servers with it."""
    for name in ("pipe", "log"):
        (folder / name).mkdir()
    return subprocess.Popen(
        [MPS, "-f"], env={**os.environ, **_of_mps(folder)}, stdin=subprocess.DEVNULL
    )
