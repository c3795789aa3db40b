"""How a record's field says that it is an option of the command line."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field


def option(
    panel: str,
    flags: str,
    about: str,
    default: Any = None,
    *,
    typed: str = "",
    **bounds: Any,
) -> Any:
    """A field that people set on the command line, where it stands in that `panel` of the help.

    `flags` ends with what is typed as its value: `--output -o FILE`; a switch has no such word.
    `typed` is how the default is typed, if unlike its value. The bounds are pydantic's.
    """
    names = flags.split()
    value = "" if names[-1].startswith("-") else names.pop()
    shown: Any = {
        "panel": panel,
        "flags": names,
        "value": value,
        "typed": typed or default,
    }
    return Field(default, description=about, json_schema_extra=shown, **bounds)


devices_option = partial(option, "Devices")
training_option = partial(option, "Training")
split_option = partial(option, "Split")
measuring_option = partial(option, "Measuring")
queue_option = partial(option, "Queue")
launching_option = partial(option, "Losses")
output_option = partial(option, "Output")
