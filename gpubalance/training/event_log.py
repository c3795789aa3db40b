"""Where a monitor writes for TensorBoard, with or without TensorBoard installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf


class EventLog:
    """A folder of TensorBoard's; all tags begin with `gpubalance/`."""

    def __init__(self, log_dir: str | Path) -> None:
        """Raises TensorFlow's error for a folder that can't be written."""
        # Its error names the folder, which a writer's does not
        tf.io.gfile.makedirs(log_dir)
        self._writer = tf.summary.create_file_writer(os.fspath(log_dir))

    def write(self, step: int, values: Mapping[str, float | str | None]) -> None:
        """Writes what is known, numbers as scalars and text as text."""
        with self._writer.as_default(step=step):
            for name, value in values.items():
                if isinstance(value, str):
                    _summary(name, "text", tf.constant([value]))
                elif value is not None:
                    _summary(name, "scalars", tf.constant(value, tf.float32))
        self._writer.flush()


def _summary(name: str, plugin: str, value: Any) -> None:
    """Writes as `tf.summary.scalar` and `.text` do, which need TensorBoard to be installed."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    tf.summary.write(f"gpubalance/{name}", value, metadata=metadata)
