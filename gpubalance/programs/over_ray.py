"""Starts gpubalance.devices.over_ray."""

import sys

_HERE = __file__.rpartition("/")[0]
sys.path[:] = [folder for folder in sys.path if folder != _HERE]

from gpubalance.devices.over_ray import main  # noqa: E402

main()
