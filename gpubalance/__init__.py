"""Measure unlike GPUs, split the batch so that they finish together, and train with it."""

__version__ = "0.1.0"
