"""Text from outside (a driver, a file, another process), made safe to show."""

from __future__ import annotations

import re
import unicodedata

# What a terminal acts on (ECMA-48): a control sequence, a control string (an unended one runs to
# the end, as on a terminal), or a short escape. Each may start with its one-character C1 form too.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
)
# Cc moves the cursor, Cf changes the writing direction or hides text, a lone surrogate (Cs) cannot
# be encoded.
_UNSAFE = {"Cc", "Cf", "Cs"}


def clean(text: str, limit: int = 200) -> str:
    """`text` on one line without escapes or control characters, cut to `limit` characters.

    A cut text ends with an ellipsis. Markup (`[red]`, `<b>`) stays: only the place that shows it
    knows what must be escaped there.
    """
    line = " ".join(clean_lines(" ".join(text.splitlines())).split())
    if len(line) <= limit:
        return line
    return line[: limit - 1].rstrip() + "…"


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode it: not what Python makes of other bytes in a path or argument."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def clean_lines(text: str) -> str:
    """`text` without escapes or control characters; its lines and indents stay."""
    lines = []
    for line in text.splitlines():
        safe = ""
        for character in _ESCAPE.sub("", line):
            if character == "\t":
                safe += character
            elif character.isspace():
                safe += " "
            elif unicodedata.category(character) not in _UNSAFE:
                safe += character
        lines.append(safe)
    return "\n".join(lines)
