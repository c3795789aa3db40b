"""Offers a shell the possible next words. Loads no TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import get_args

import typer

from gpubalance.system.applications import applications

_LARGEST_FILE = 1 << 20
Offers = list[tuple[str, str]]  # a word and what it is


def is_asked() -> bool:
    """Whether a shell asks for completions, so that nothing else may be printed."""
    return os.environ.get("_GPUBALANCE_COMPLETE", "").startswith("complete_")


def offers(flag: str, kind: object) -> Callable[..., Offers] | None:
    """What offers values of an option of that kind; None where the shell itself completes files, or nothing does."""
    words = [(word, "") for word in get_args(kind) if isinstance(word, str)]
    if words:
        return lambda incomplete: _starting(incomplete, *words)
    known: dict[str, Callable[..., Offers]] = {
        "--model": models,
        "--accumulate": accumulate,
        "--simulate": profiles,
        "--gpus": devices,
    }
    return known.get(flag)


def _starting(incomplete: str, *offers: tuple[str, str]) -> Offers:
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def models(incomplete: str) -> Offers:
    """Names that --model takes; the shell itself completes files and modules."""
    built_in = ("probe", "heavy, the default on GPUs"), ("small", "light, the default on simulated devices")
    return _starting(incomplete, *built_in, *((name, "of keras.applications") for name in applications()))


def accumulate(incomplete: str) -> Offers:
    """The words that --accumulate takes besides a number."""
    return _starting(incomplete, ("auto", "up to 8 a device where memory binds"), ("off", "none"))


def profiles(incomplete: str) -> Offers:
    """Device profiles in the typed folder; without one, in the current folder and in configs/."""
    folder = os.path.dirname(incomplete)  # noqa: PTH120  (as typed: Path would drop a ./)
    found = sorted(Path(folder or ".").glob("*.toml"))
    if not folder:
        configs = (Path("configs"), Path(__file__).parents[2] / "configs")
        found += sorted(next((one for one in configs if one.is_dir()), configs[0]).glob("*.toml"))
    names = ((os.path.join(folder, path.name) if folder else str(path), path) for path in found)  # noqa: PTH118
    return _starting(incomplete, *((name, "a device profile") for name, path in names if _is_profile(path)))


def _is_profile(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.stat().st_size < _LARGEST_FILE and "[[device]]" in path.read_text(encoding="utf-8")
    return False


def devices(ctx: typer.Context, incomplete: str) -> Offers:
    """Indices for --gpus that are not typed yet, with their names; `0,` becomes `0,1`."""
    from gpubalance.devices.machine import find_machine
    from gpubalance.errors import GpubalanceError

    simulate = ctx.params.get("simulate")
    if ctx.params.get("hosts") and not simulate:  # asking them takes longer than anyone waits for a completion
        return []
    try:
        here = find_machine(simulate).devices
    except GpubalanceError:
        return []
    before, comma, _ = incomplete.rpartition(",")
    named = {word for value in [*(ctx.params.get("gpus") or ()), before] for word in value.split(",")}
    return [(f"{before}{comma}{d.called}", d.name) for d in here if d.called not in named]
