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
    """What offers values of an option of that kind; None if none.

    Typer takes those that begin as typed.
    """
    words = [word for word in get_args(kind) if isinstance(word, str)]
    if flag == "--accumulate":
        words = ["auto", "off"]
    if words:
        return lambda: words
    if flag == "--model":
        return lambda: [*BUILT_IN, *models()]
    if flag == "--simulate":
        return profiles
    return devices if flag == "--gpus" else None


def profiles() -> list[str]:
    """The profiles that come with gpubalance; files the shell completes itself."""
    from gpubalance.devices.profile import shipped_profiles

    return list(shipped_profiles())


def models() -> list[str]:
    """The models of keras.applications; none without Keras.

    They are read in its file, as Keras takes seconds to load.
    """
    spec = find_spec("keras")
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0], "applications")
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    return list(dict.fromkeys(re.findall(r"\bas ([A-Z]\w*)", text)))


def devices(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Indices for --gpus that are not typed yet, with their names; `0,` becomes `0,1`.

    There are none without a GPU.
    """
    from gpubalance.devices.machine import find_machine

    simulate = ctx.params.get("simulate")
    typed_hosts = ctx.params.get("hosts") or ""
    hosts = [host for host in typed_hosts.split(",") if host]
    # Asking them takes longer than anyone waits for a completion
    if hosts and not simulate:
        return []
    before, comma, _ = incomplete.rpartition(",")
    values = [*(ctx.params.get("gpus") or ()), before]
    typed = ",".join(values).split(",")
    offered = []
    for device in find_machine(simulate, hosts).devices:
        if device.called not in typed:
            offered.append((f"{before}{comma}{device.called}", device.name))
    return offered
