"""What is raised or warned of must say."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from gpubalance.errors import BadInput


def refused(text: str, kind: type[BaseException] = BadInput) -> Any:
    """The block must raise that, with a text that matches."""
    return pytest.raises(kind, match=text)


def warned(text: str) -> Any:
    """The block must warn the user so."""
    return pytest.warns(UserWarning, match=text)


def warnings_of(call: Callable[[], object], file: str = "") -> list[str]:
    """What a call warns of, each time; with a file only what names a line there."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    # NumPy's of Keras 3.12, in its own file
    own = [one for one in caught if "keras/src/backend" not in one.filename]
    return [str(one.message) for one in own if file in ("", one.filename)]
