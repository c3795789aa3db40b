"""Each option with its bounds and default: `python -m tests.settings.test_options` writes the list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from gpubalance.settings.measuring import Measuring, Probing, Proof
from gpubalance.settings.planning import Cutting, PlanRequest
from gpubalance.settings.requests import BalanceRequest, Launching, QueueRequest
from gpubalance.settings.settings import Settings

LIST = Path(__file__).with_name("options.txt")
KINDS = (
    *(Settings, PlanRequest, BalanceRequest, Cutting, Measuring, Proof, Probing),
    *(Launching, QueueRequest),
)
_BOUNDS = ("gt", "ge", "lt", "le", "max_length", "multiple_of")


def options() -> Iterator[str]:
    """A line for each option of a record; `--help` is held elsewhere."""
    for kind in KINDS:
        for name, field in kind.model_fields.items():
            shown: Any = field.json_schema_extra
            if shown:
                flags = " ".join([*shown["flags"], shown["value"]])
                default = f"{field.default!r}, typed {shown['typed']!r}"
                bounds = sorted({*_bounds_of(field), *_bounds_of(field.annotation)})
                where = f"{kind.__name__}.{name}: {shown['panel']}, {flags}"
                yield f"{where}: {default}; {', '.join(bounds)}"


def _bounds_of(about: Any) -> Iterator[str]:
    """The bounds in an annotation, and in all that it is made of."""
    for bound in _BOUNDS:
        value = getattr(about, bound, None)
        if value is not None:
            yield f"{bound} {value}"
    for part in (*getattr(about, "metadata", ()), *get_args(about)):
        yield from _bounds_of(part)


def test_options_bounds_and_defaults_are_as_they_are_listed() -> None:
    assert "\n".join(options()) + "\n" == LIST.read_text(encoding="utf-8")


if __name__ == "__main__":
    LIST.write_text("\n".join(options()) + "\n", encoding="utf-8")
