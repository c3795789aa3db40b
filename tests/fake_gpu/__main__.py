"""`python -m tests.fake_gpu [options] -- COMMAND …`: runs a command on fake GPUs.

README.md says more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gpubalance.numbers.units import parse_bytes
from tests.fake_gpu.build import NoFakeGpus
from tests.fake_gpu.machine import Gpu, machine

T = TypeVar("T")


def main(words: Sequence[str]) -> int:
    """Returns the command's exit code."""
    parser = _parser()
    asked = parser.parse_args(words)
    if not asked.command:
        parser.error("which command? Write it after --")
    with tempfile.TemporaryDirectory() as folder:
        try:
            variables = machine(asked.folder or Path(folder), *_gpus(asked))
        except NoFakeGpus as why:
            parser.error(str(why))
        # The program of this environment comes first, as a user's shell would have it.
        path = os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        )
        return subprocess.run(
            asked.command, env=os.environ | {"PATH": path} | variables, check=False
        ).returncode


def _gpus(asked: argparse.Namespace) -> list[Gpu]:
    return [
        Gpu(
            name=_nth(asked.names, number),
            memory_bytes=_nth(asked.memory, number),
            gflops=_nth(asked.gflops, number),
            gbytes_per_s=_nth(asked.gbytes_per_s, number),
            pcie_gbytes_per_s=_nth(asked.pcie_gbytes_per_s, number),
        )
        for number in range(asked.gpus)
    ]


def _nth(values: Sequence[T], number: int) -> T:
    """The GPU's own value, or the last that was given."""
    return values[min(number, len(values) - 1)]


def _each(of: Callable[[str], T]) -> Callable[[str], list[T]]:
    def values(text: str) -> list[T]:
        return [of(word.strip()) for word in text.split(",")]

    return values


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fake_gpu",
        description=(
            "Runs a command on a machine of fake GPUs. Several values are those of the GPUs, in "
            "order."
        ),
        epilog=(
            "Example: python -m tests.fake_gpu --memory 3GiB,2GiB --gflops 4,2 -- gpubalance "
            "balance --model small"
        ),
    )
    default = Gpu()
    parser.add_argument(
        "--gpus", type=int, default=2, metavar="N", help="how many, 2 if not given"
    )
    parser.add_argument(
        "--names", type=_each(str), default=[default.name], metavar="NAME,…"
    )
    parser.add_argument(
        "--memory",
        type=_each(parse_bytes),
        default=[default.memory_bytes],
        metavar="SIZE,…",
    )
    for name in ("gflops", "gbytes_per_s", "pcie_gbytes_per_s"):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(
            flag, type=_each(float), default=[getattr(default, name)], metavar="X,…"
        )
    kept = "a folder for the machine's files, with the trace of what its GPUs did"
    parser.add_argument("--folder", type=Path, help=kept)
    parser.add_argument("command", nargs="*", metavar="COMMAND")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
