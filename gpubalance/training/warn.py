"""Warnings that name the line of the user's script, not one of a library."""

from __future__ import annotations

import warnings

from gpubalance.engine.users_lines import users_line


def warn_user(text: str) -> None:
    """Warns at the innermost line of the user's own code."""
    warnings.warn_explicit(text, UserWarning, *users_line())
