"""The program started on a host: `python …/on_host.py MODULE WORDS…` runs the `main` of that module of ours.

None of its words means anything to a shell, so any number of shells may read them on the way, as ssh's does.
"""

from __future__ import annotations

import sys


def command(main: str, words: tuple[str, ...]) -> list[str]:
    """The command for a host with Python and gpubalance at the same place; each word is `x` and hexadecimal digits."""
    return [sys.executable, __file__, main, *(f"x{word.encode().hex()}" for word in words)]


def main() -> None:
    """Runs the module, with neither this folder, which Python puts first, nor the current one on the path."""
    sys.path[:] = filter(None, sys.path[1:])
    from importlib import import_module

    module, *words = sys.argv[1:]
    sys.argv[1:] = [bytes.fromhex(word[1:]).decode() for word in words]
    import_module(module).main()


if __name__ == "__main__":
    main()
