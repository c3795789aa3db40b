"""Threads that nobody waits for do not abort a program that ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.python import python

PROGRAM = """
import threading, time
import tensorflow as tf
from gpubalance.engine.iterators import Reader

began = threading.Event()

def traces():
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        tf.function(lambda x: x + 1).get_concrete_function(tf.constant(1.0))
        began.set()
    print("traced", flush=True)

reader = Reader()
reader.submit(traces)
reader.submit(traces)
began.wait()
"""


def test_a_program_that_ends_lets_a_thread_finish_what_it_traces() -> None:
    """Python ends it inside TensorFlow otherwise: "FATAL: exception not rethrown", code -6."""
    done = python("-c", PROGRAM)
    assert (done.returncode, done.stdout) == (0, "traced\n"), done.stderr


def test_where_python_ends_no_thread_is_started_and_nothing_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Since version 3.12 Python refuses to; what would be dropped there may abort the program."""
    from gpubalance.engine import iterators

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(iterators, "_kept", [])
    iterator: Any = iter(())
    iterators.start_thread(list, iterator, name="late")
    assert iterators._kept == [(iterator,)]
