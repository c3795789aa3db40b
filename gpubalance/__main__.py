"""The program: `gpubalance`, and `python -m gpubalance`."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Loads the command line and runs it. Until then an interrupt ends it without a traceback."""
    # Else it is ignored, as in a shell's background.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpubalance.cli.app import main as program

    program()


if __name__ == "__main__":
    main()
