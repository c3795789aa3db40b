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
from typing import Any, TypeVar

from gpubalance.numbers.units import parse_bytes
from tests.fake_gpu.build import NoFakeGpus
from tests.fake_gpu.machine import Gpu, machine

T = TypeVar("T")
_RATES = ("gflops", "gbytes_per_s", "pcie_gbytes_per_s")


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
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        variables = os.environ | {"PATH": path} | variables
        return subprocess.run(asked.command, env=variables).returncode


def _gpus(asked: argparse.Namespace) -> list[Gpu]:
    fields = {"name": asked.names, "memory_bytes": asked.memory}
    fields |= {name: getattr(asked, name) for name in _RATES}
    gpus = []
    for number in range(asked.gpus):
        # The GPU's own value, or the last that was given
        own = {name: values[: number + 1][-1] for name, values in fields.items()}
        gpus.append(Gpu(**own))
    return gpus


def _each(of: Callable[[str], T]) -> Callable[[str], list[T]]:
    def values(text: str) -> list[T]:
        return [of(word.strip()) for word in text.split(",")]

    return values


def _parser() -> argparse.ArgumentParser:
    does = "Runs a command on a machine of fake GPUs. Several values are those of the GPUs, in order."
    program, default = "python -m tests.fake_gpu", Gpu()
    example = (
        f"{program} --memory 3GiB,2GiB --gflops 4,2 -- gpubalance balance --model small"
    )
    parser = argparse.ArgumentParser(program, None, does, f"Example: {example}")
    add = parser.add_argument
    add("--gpus", type=int, default=2, metavar="N", help="how many, 2 if not given")
    add("--names", type=_each(str), default=[default.name], metavar="NAME,…")
    memory = [default.memory_bytes]
    add("--memory", type=_each(parse_bytes), default=memory, metavar="SIZE,…")
    for name in _RATES:
        of_gpu: Any = {"default": [getattr(default, name)], "metavar": "X,…"}
        add(f"--{name.replace('_', '-')}", type=_each(float), **of_gpu)
    kept = "a folder for the machine's files, with the trace of what its GPUs did"
    parser.add_argument("--folder", type=Path, help=kept)
    parser.add_argument("command", nargs="*", metavar="COMMAND")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
