"""The models of `keras.applications`, found without loading Keras, which takes seconds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from gpubalance.errors import BadInput

BUILT_IN = ("probe", "small")


def applications() -> tuple[str, ...]:
    """Their names, as the installed package lists them; none if its list can't be read."""
    spec = find_spec("keras")
    folders = (spec.submodule_search_locations if spec else None) or ()
    try:
        lists = [(Path(folder) / "applications" / "__init__.py").read_text(encoding="utf-8") for folder in folders]
    except (OSError, ValueError):
        return ()
    return tuple(dict.fromkeys(re.findall(r"\bas ([A-Z]\w*)", "\n".join(lists))))


def refuse_unknown(model: str, known: Collection[str]) -> None:
    """Raises BadInput for a name that is neither a built-in model's nor one of the `known` applications."""
    names = {one.lower(): one for one in (*known, *BUILT_IN)}
    if model in names.values():
        return
    nearest = difflib.get_close_matches(model.lower(), names, n=1)
    raise BadInput(
        f"there is no model {model!r}" + "".join(f": did you mean {names[one]}?" for one in nearest),
        remedy="use probe, small, a keras.applications name such as MobileNetV2, package.module:function, "
        "file.py:function or saved.keras",
    )
