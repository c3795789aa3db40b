"""The words that flags and files may use. Light: the command line's help imports this and nothing heavier."""

from __future__ import annotations

from typing import Literal

Precision = Literal["float32", "tf32", "mixed_float16", "mixed_bfloat16"]
AllReduce = Literal["auto", "nccl", "hierarchical", "one-device"]
Input = Literal["device", "host"]
Baseline = Literal["even", "none"]

# Where TensorBoard looks for traces below a log directory: https://www.tensorflow.org/guide/profiler
TRACES = "plugins/profile"

DEFAULT_MODEL_ON_GPU = "probe"
DEFAULT_MODEL_SIMULATED = "small"
DEFAULT_BATCH = 64
