"""What `doctor` measures between two GPUs is what their links give."""

from __future__ import annotations

import json

from tests.cli.program import TINY, gpubalance
from tests.fake_gpu import operations

COPIED_BYTES = 64 << 20


def test_copies_are_as_fast_as_links(two_gpus: dict[str, str]) -> None:
    """Each one is made: TensorFlow keeps what it has copied of a tensor."""
    done = gpubalance("doctor", "--model", TINY, "--json", environment=two_gpus)
    found = json.loads(done.stdout)
    copies = found["copies"]
    ways = [(one["source"], one["target"], one["intact"]) for one in copies]
    assert ways == [(0, 1, True), (1, 0, True)]
    between = [one for one in operations(two_gpus) if one.kind == "between"]
    made = [one for one in between if one.bytes == COPIED_BYTES]
    min_s = min(one.ends_s - one.starts_s for one in made)
    for copy in copies:
        assert copy["seconds"] >= min_s
