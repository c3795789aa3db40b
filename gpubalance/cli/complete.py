"""Offers a shell the possible next words. Loads no TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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
    words = [word for word in get_args(kind) if isinstance(word, str)]
    if words:
        return lambda incomplete: [(word, "") for word in words if word.startswith(incomplete)]
    known: dict[str, Callable[..., Offers]] = {
        "--model": models,
        "--accumulate": accumulate,
        "--simulate": profiles,
        "--gpus": devices,
    }
    return known.get(flag)


def models(incomplete: str) -> Offers:
    """Names that --model takes; the shell itself completes files and modules."""
    built_in = [("probe", "heavy, the default on GPUs"), ("small", "light, the default on simulated devices")]
    names = built_in + [(name, "of keras.applications") for name in applications()]
    return [offer for offer in names if offer[0].startswith(incomplete)]


def accumulate(incomplete: str) -> Offers:
    """The words that --accumulate takes besides a number."""
    offers = [("auto", "up to 8 a device where memory binds"), ("off", "none")]
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def profiles(incomplete: str) -> Offers:
    """Device profiles in the typed folder; without one, in the current folder and in configs/."""
    folder = os.path.dirname(incomplete)  # noqa: PTH120  (as typed: Path would drop a ./)
    found = sorted(Path(folder or ".").glob("*.toml"))
    if not folder:
        configs = next((f for f in (Path("configs"), Path(__file__).parents[2] / "configs") if f.is_dir()), None)
        found += sorted(configs.glob("*.toml")) if configs else []
    offers = [(os.path.join(folder, p.name) if folder else str(p), p) for p in found]  # noqa: PTH118
    return [(name, about) for name, path in offers if name.startswith(incomplete) for about in _profile(path)]


def _profile(path: Path) -> Iterator[str]:
    """The first line of a device profile; nothing for any other file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_LARGEST_FILE)
    except OSError:
        return
    if "[[device]]" in text:
        first = text.partition("\n")[0]
        yield first.lstrip("# ") if first.startswith("#") else "a device profile"


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
