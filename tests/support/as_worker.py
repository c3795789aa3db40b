"""Makes a process one as workers are."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gpubalance.devices.environment import worker_environment
from gpubalance.settings.device import Device
from gpubalance.workers.serve import lean_import


def show(devices: Sequence[Device]) -> None:
    """Gives this process the environment of a worker with these devices.

    It loads TensorFlow as a worker does.
    """
    wanted = os.environ | worker_environment(devices)
    os.environ.clear()
    os.environ.update(
        {name: value for name, value in wanted.items() if value is not None}
    )
    if "tensorflow" not in sys.modules:
        with lean_import():
            import gpubalance.engine.session  # noqa: F401
