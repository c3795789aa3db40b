"""What a user is told amid training: warnings that name his line, and lines below Keras' bar."""

from __future__ import annotations

import warnings
from typing import Any

from gpubalance.engine.keras_patches import print_msg
from gpubalance.engine.users_lines import users_line


def warn_user(text: str) -> None:
    """Warns at the innermost line of the user's own code."""
    warnings.warn_explicit(text, UserWarning, *users_line())


def print_below_bar(text: str, verbose: Any) -> None:
    """Prints a line below the progress bar, which has no end yet, if `verbose` has Keras show it.

    Keras takes "auto" for 1.
    """
    print_msg(f"\n{text}" if verbose in (1, "auto") else text)
