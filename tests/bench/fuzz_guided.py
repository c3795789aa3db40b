"""Readers fed by atheris, which is guided by what an input reaches: `python -m tests.bench.fuzz_guided -runs=N`.

Only where atheris is installed (it has no wheel for every Python, and so is no part of [dev]); `fuzz` starts it.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gpubalance"]):
    from gpubalance.cli.values import join_lists
    from gpubalance.devices.profile import simulated_devices
    from gpubalance.errors import GpubalanceError
    from gpubalance.numbers.units import parse_bytes
    from gpubalance.results.records import read_result
    from gpubalance.text import clean, clean_lines
    from gpubalance.workers.messages import REPLY

from pydantic import ValidationError

from tests.bench.fuzz_input import PROFILES, RESULTS
from tests.bench.in_process import ESCAPE

_FOLDER = Path(tempfile.mkdtemp(prefix="gpubalance-guided-"))


def one_input(content: bytes) -> None:
    """The first byte says who reads the others."""
    kind, rest = content[:1] or b"\0", content[1:]
    file = _FOLDER / "given"
    text = rest.decode("utf-8", "surrogateescape")
    with contextlib.suppress(GpubalanceError, ValidationError):
        if kind[0] % 4 == 0:
            file.write_bytes(rest)
            read_result(file)
        elif kind[0] % 4 == 1:
            file.write_bytes(rest)
            simulated_devices(str(file))
        elif kind[0] % 4 == 2:
            REPLY.validate_json(rest)
        else:
            assert not ESCAPE.search(clean(text))
            assert not ESCAPE.search(clean_lines(text).replace("\n", ""))
            join_lists(text.split(" "))
            with contextlib.suppress(ValueError):
                parse_bytes(text)


def main() -> None:
    """Begins with real files, small ones, so that it has something to change."""
    corpus = _FOLDER / "corpus"
    corpus.mkdir()
    for number, (kind, path) in enumerate([(b"\0", p) for p in RESULTS[-1:]] + [(b"\1", p) for p in PROFILES]):
        (corpus / str(number)).write_bytes(kind + path.read_bytes())
    atheris.Setup([*sys.argv, "-max_len=20000", "-timeout=60", "-rss_limit_mb=2048", str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
