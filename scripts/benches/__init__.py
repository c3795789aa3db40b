"""Measurements for the guide, each a ratio of two things that one run measures in turns.

`scripts/bench NAME` runs one. What tests use as well is in tests/support.
"""
