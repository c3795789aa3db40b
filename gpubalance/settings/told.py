"""What pydantic finds wrong in a file or an argument, in our own words."""

from __future__ import annotations

from reprlib import repr as short_repr
from typing import TYPE_CHECKING

from gpubalance.text import clean

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_WORDS = {
    "missing": " is missing",
    "extra_forbidden": ": no such key",
    "too_short": ": there is none",
    "greater_than": " takes more than {gt}, not {given}",
    "greater_than_equal": " takes {ge} or more, not {given}",
    "less_than": " takes less than {lt}, not {given}",
    "less_than_equal": " takes {le} or less, not {given}",
    "finite_number": " takes a finite number, not {given}",
    "literal_error": " takes {expected}, not {given}",
    "string_too_short": " takes text, not {given}",
    "string_too_long": " takes at most {max_length} characters, not {given}",
    "unsound": ".{field}: {what}",
    "string_pattern_mismatch": " takes text of the form {pattern}, not {given}",
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "model": "a table",
}
_OF_A_KIND = ("type", "parsing", "from_float")  # pydantic's `int_type`, `int_parsing`, `int_from_float`


def first_fault(error: ValidationError) -> str:
    """The place of the first wrong field, `device.0.alpha_s`, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    where, what = clean(".".join(map(str, first["loc"])), 100), fault_text(first)
    return f"{where}{what}" if where else what.lstrip(": .")


def fault_text(fault: ErrorDetails) -> str:
    """` takes 0 or more, not -1`, to follow the field's name; `: ` and its own words for what a validator says."""
    base, _, rest = fault["type"].partition("_")
    words = _WORDS.get(fault["type"])
    if words is None and base in _KINDS and rest in _OF_A_KIND:
        words = f" takes {_KINDS[base]}, not {{given}}"
    if words is None:
        return f": {clean(fault['msg'].removeprefix('Value error, '))}"
    value = fault["input"]
    given = "nothing" if value is None else clean(short_repr(value), 40)
    if "expected" not in fault.get("ctx", {}) and isinstance(value, str) and value.strip("-").isdecimal():
        given = clean(value, 40)  # a number that was typed
    bounds = {key: f"{bound:g}" if isinstance(bound, float) else bound for key, bound in fault.get("ctx", {}).items()}
    return words.format(given=given, **bounds)
