"""Runs one step in its own process: `python -m tests.bench.gpu.step NAME FOLDER SECONDS [--rehearse]`.

Each figure is written to FOLDER/NAME.json as soon as it is found.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path

from gpubalance.system.state import write_whole
from gpubalance.workers.keeper import die_with_parent
from tests.bench.gpu.place import Place, usable_gpus


def main(name: str, folder: str, seconds: str, *rehearse: str) -> None:
    """Runs the step."""
    die_with_parent()
    until_s = time.monotonic() + float(seconds)
    place = Place(Path(folder, name), () if rehearse else usable_gpus(), until_s)
    place.folder.mkdir(exist_ok=True)
    found = []
    for figure in import_module(f"tests.bench.gpu.steps.{name}").figures(place):
        found.append(figure._asdict())
        write_whole(Path(folder, f"{name}.json"), json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is written: a driver's trouble at TensorFlow's end must not fail the step
