"""Where the stand-in's processes wait for each other, as those of TensorFlow do: in a module of its."""

import time


def wait() -> None:
    """For one that never comes."""
    time.sleep(600)
