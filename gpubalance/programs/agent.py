"""Starts gpubalance.workers.agent."""

import sys

_HERE = __file__.rpartition("/")[0]
sys.path[:] = [folder for folder in sys.path if folder != _HERE]

from gpubalance.workers.agent import main  # noqa: E402

main()
