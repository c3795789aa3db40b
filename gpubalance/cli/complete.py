"""Offers a shell the possible next words; it completes files itself. Loads no TensorFlow."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import typer

from gpubalance.settings.choices import BUILT_IN


def is_asked() -> bool:
    """Whether a shell asks for completions, so that nothing else may be printed."""
    return os.environ.get("_GPUBALANCE_COMPLETE", "").startswith("complete_")


def offers(flag: str, kind: object) -> Callable[..., Any] | None:
    """What offers values of an option of that kind, from which Typer takes those that begin as
    typed; None if none.
    """
    words = [word for word in get_args(kind) if isinstance(word, str)]
    known: dict[str, Callable[..., Any]] = {
        "--model": lambda: [*BUILT_IN, *models()],
        "--accumulate": lambda: ["auto", "off"],
        "--gpus": devices,
    }
    return (lambda: words) if words else known.get(flag)


def models() -> list[str]:
    """The models of keras.applications, read in its file, as Keras takes seconds to load; none
    without Keras.
    """
    spec = find_spec("keras")
    folders = (spec.submodule_search_locations if spec else None) or ()
    lists = [
        Path(folder, "applications", "__init__.py").read_text(encoding="utf-8")
        for folder in folders
    ]
    return list(dict.fromkeys(re.findall(r"\bas ([A-Z]\w*)", "\n".join(lists))))


def devices(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Indices for --gpus that are not typed yet, with their names; `0,` becomes `0,1`. None where
    there is no GPU.
    """
    from gpubalance.devices.machine import find_machine

    simulate = ctx.params.get("simulate")
    hosts = [host for host in (ctx.params.get("hosts") or "").split(",") if host]
    if hosts and not simulate:  # asking them takes longer than anyone waits for a completion
        return []
    before, comma, _ = incomplete.rpartition(",")
    named = {
        word for value in [*(ctx.params.get("gpus") or ()), before] for word in value.split(",")
    }
    here = find_machine(simulate, hosts).devices
    return [(f"{before}{comma}{one.called}", one.name) for one in here if one.called not in named]
