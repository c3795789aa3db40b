"""Gives a worker another engine, or parts of a GPU.

Python runs this at its start if the folder is on PYTHONPATH. It loads no module until one is
needed, as Python's start does not: what is loaded is never looked for, so that a file which hides it
would not be noticed.
"""

import os
import sys

if "ENGINE_STAND_IN" in os.environ:
    _ENGINE = os.environ["ENGINE_STAND_IN"]
    _INSTEAD = {
        "gpubalance.engine.session": _ENGINE,
        "gpubalance.engine.pipeline.session": _ENGINE.rpartition("/")[0]
        + "/layers_session.py",
    }

    class _Finder:
        @staticmethod
        def find_spec(name, *_):  # type: ignore[no-untyped-def]
            if name not in _INSTEAD:
                return None
            from importlib.util import spec_from_file_location

            return spec_from_file_location(name, _INSTEAD[name])

    sys.meta_path.insert(0, _Finder)

if "GPUBALANCE_BENCH_PARTS" in os.environ:
    from tests.support.gpu import parts

    parts.install()
