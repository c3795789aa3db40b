"""Gives a worker another engine, or parts of a GPU.

Python runs this at its start if the folder is on PYTHONPATH.
"""

import importlib.util
import os
import sys
from pathlib import Path

if "ENGINE_STAND_IN" in os.environ:

    class _Finder:
        @staticmethod
        def find_spec(name, *_):  # type: ignore[no-untyped-def]
            if name == "gpubalance.engine.session":
                return importlib.util.spec_from_file_location(
                    name, os.environ["ENGINE_STAND_IN"]
                )
            if name == "gpubalance.engine.pipeline.session":
                beside = Path(os.environ["ENGINE_STAND_IN"]).with_name(
                    "layers_session.py"
                )
                return importlib.util.spec_from_file_location(name, beside)
            return None

    sys.meta_path.insert(0, _Finder)

if "GPUBALANCE_BENCH_PARTS" in os.environ:
    from tests.bench.gpu import parts

    parts.install()
