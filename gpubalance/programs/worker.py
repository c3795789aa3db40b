"""Starts a worker: `python worker.py REPLIES`, the number of the pipe that takes its replies."""

import sys

_HERE = __file__.rpartition("/")[0]
sys.path[:] = [folder for folder in sys.path if folder != _HERE]

import signal  # noqa: E402

# INT ends it like TERM, without a traceback: a Ctrl-C is for its parent
signal.signal(signal.SIGINT, signal.SIG_DFL)

from gpubalance.workers.serve import main  # noqa: E402  (an interrupt may come while it loads)

main(int(sys.argv[1]))
