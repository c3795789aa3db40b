"""What every command prints at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpubalance.render.table import WIDTH, Part, lines_of, prose
from gpubalance.results.common import Warning_


def summary(
    told: Iterable[Part],
    warnings: Sequence[Warning_],
    next_command: str = "",
    script: Sequence[str] = (),
    width: int = WIDTH,
    typed: Callable[[str], str] = str,
) -> str:
    """What is told of a result, its warnings, the next command, and the lines of a training script.

    `typed` returns a remedy with its commands as this user types them.
    """
    lines = [*lines_of(told, width), *warning_lines(warnings, width, typed)]
    if next_command:
        lines += ["", f"next: {next_command}"]
    if script:
        lines += ["or, after `import gpubalance`, train your own model with it:", *(f"  {line}" for line in script)]
    return "\n".join(lines)


def warning_lines(warnings: Sequence[Warning_], width: int = WIDTH, typed: Callable[[str], str] = str) -> list[str]:
    """An empty line, then each warning's code, message and remedy; warnings of one kind are joined."""
    alike: dict[tuple[str, str], list[str]] = {}
    for warning in warnings:
        alike.setdefault((warning.code, warning.next), []).append(warning.message)
    lines = [""] if alike else []
    for (code, remedy), messages in alike.items():
        lines += prose(f"warning {code}: {'; '.join(messages)}", width)
        # Paths and flags stay whole, so that they can be copied.
        first, *others = prose(typed(remedy), width - 4) or [""]
        lines += [f"  → {first}", *(f"  {line}" for line in others)]
    return lines
