"""Starts gpubalance.workers.keeper."""

import sys

_HERE = __file__.rpartition("/")[0]
sys.path[:] = [folder for folder in sys.path if folder != _HERE]

from gpubalance.workers.keeper import main  # noqa: E402

main()
