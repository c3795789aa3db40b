"""A worker's log."""

from __future__ import annotations

from pathlib import Path

from gpubalance.workers.process import bound, tail

TOLD_AT_EVERY_START = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795284274.373600   24078 cudart_stub.cc:31] Could not find cuda drivers on your machine.
I0000 00:00:1795284274.420179   24078 cpu_feature_guard.cc:227] This TensorFlow binary is optimized.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.
2026-11-21 18:00:00.000001: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
Traceback (most recent call last):
  File "session.py", line 1, in step
    raise ValueError
"""


def test_the_end_of_the_log_is_harmless_without_tracebacks_and_what_tensorflow_tells_of_every_start(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old\n" * 50 + TOLD_AT_EVERY_START.encode() + b"\x1b[31mred\x1b[0m \xff\n")
    assert tail(log).splitlines() == ["old"] * 11 + ["red \ufffd"]


def test_a_log_that_is_too_long_begins_again_under_its_writer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100)
        bound(log, 100)
        assert log.stat().st_size == 100
        writer.write(b"x")
        bound(log, 100)
        writer.write(b"the end")
    assert log.read_bytes() == b"the end"
    bound(tmp_path / "no such log")
