"""Where the threads of a pipeline's devices leave values for each other."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any


class StoppedError(Exception):
    """Another device has failed: what this one waits for will not come."""


class Mailbox:
    """Holds each value until it is taken, once.

    The order of each device's tasks bounds how many it holds.
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._changed = threading.Condition()
        self._is_stopped = False

    def give(self, key: Hashable, value: Any) -> None:
        """Leaves a value for whoever takes the key."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def take(self, key: Hashable) -> Any:
        """Waits for the key's value.

        Raises StoppedError if it will not come, and an error that came in its place.
        """
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._is_stopped)
            if self._is_stopped:
                raise StoppedError
            value = self._values.pop(key)
        if isinstance(value, Exception):
            raise value
        return value

    def stop(self) -> None:
        """Ends all waiting."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
