"""Arithmetic on measured numbers: statistics, ratios with their intervals, units as text.

It knows nothing of what was measured.
"""
