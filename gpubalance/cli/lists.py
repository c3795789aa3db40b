"""Options that take a list, written as people write them: `--gpus 0 1`, `--gpus 0,1`, `--gpus 0 --gpus 1`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpubalance.errors import UsageError
from gpubalance.text import clean

LIST_OPTIONS = ("--gpus", "--batches", "--micro-batches")
_LARGEST = 10**9
_DIGITS = 20
_NUMBER = re.compile(r"-\d")


def join_lists(arguments: Sequence[str]) -> list[str]:
    """The arguments with each list option's values joined by commas, as Typer takes one value an option.

    Values go on until the next option; `-5` is a value, so that it can be refused by what is wrong with it. Raises
    UsageError for a list option with no value.
    """
    joined: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*joined, argument, *rest]
        name, equals, value = argument.partition("=")
        if name not in LIST_OPTIONS:
            joined.append(argument)
            continue
        values = [value] if equals else []
        while rest and (not rest[0].startswith("-") or _NUMBER.match(rest[0])):
            values.append(rest.pop(0))
        if not any(v.strip(" ,") for v in values):
            raise UsageError(f"{name} needs a value", remedy=f"for example {name} {_EXAMPLES[name]}")
        joined.append(f"{name}={','.join(values)}")
    return joined


_EXAMPLES = {"--gpus": "0 1", "--batches": "820 568", "--micro-batches": "410 568"}


def words(values: Sequence[str] | None) -> list[str] | None:
    """The items of a list option, given once or several times; None where it was not given."""
    if not values:
        return None
    return [word for value in values for word in re.split(r"[,\s]+", value) if word]


def whole_numbers(option: str, values: Sequence[str] | None) -> list[int] | None:
    """The same as whole numbers. Raises UsageError with the one that is none."""
    items = words(values)
    if items is None:
        return None
    for item in items:
        # Its length first: Python makes no number of thousands of digits.
        if not item.isascii() or not item.isdigit() or len(item) > _DIGITS or int(item) > _LARGEST:
            raise UsageError(
                f"{option} takes whole numbers from 1 to {_LARGEST}, not {clean(item, 40)!r}",
                remedy=f"for example {option} {_EXAMPLES[option]}",
            )
    return [int(item) for item in items]
