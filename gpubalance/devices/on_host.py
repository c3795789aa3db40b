"""What a host is reached for: `python …/on_host.py MODULE WORDS…` runs the `main` of that module of ours.

To a shell no word of it means anything: so one may read it there, as ssh's does, or none, or several.
"""

from __future__ import annotations

import sys


def command(main: str, words: tuple[str, ...]) -> list[str]:
    """Of a host that has Python, and gpubalance, at the same place; each word is hexadecimal digits behind an `x`."""
    return [sys.executable, __file__, main, *(f"x{word.encode().hex()}" for word in words)]


def main() -> None:
    """Neither this folder, which Python puts first, nor the current one must hide a module."""
    sys.path[:] = filter(None, sys.path[1:])
    from importlib import import_module

    module, *words = sys.argv[1:]
    sys.argv[1:] = [bytes.fromhex(word[1:]).decode() for word in words]
    import_module(module).main()


if __name__ == "__main__":
    main()
