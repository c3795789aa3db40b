"""Finds where a process of a cluster is when all are silent."""

from __future__ import annotations

import faulthandler
import sys
import threading
import traceback
from typing import Any

from gpubalance.workers.messages import Whereabouts

_LOG = 2  # the real stderr, whatever a user's program has assigned to sys.stderr


def whereabouts(session: Any) -> Whereabouts:
    """Where this process is, found from another thread than its main one. What all its threads do goes to the log."""
    faulthandler.dump_traceback(_LOG)
    computed, summed = session.progress if session is not None else (0, 0)
    return Whereabouts(computed=computed, summed=summed, at=_outside_of_tensorflow())


def _outside_of_tensorflow() -> str:
    """What the main thread does; empty if it is in TensorFlow and may wait for others, unless that reads data."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._current_frames()[threading.main_thread().ident or 0])]
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    if any(module.startswith("tensorflow.python.data.") for module in modules):
        return "waits for its data"
    # There TensorFlow waits for its own threads.
    innermost = next(n for n, module in enumerate(modules) if module != "threading")
    if modules[innermost].startswith("tensorflow."):
        return ""
    frame = frames[innermost]
    return f"is in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
