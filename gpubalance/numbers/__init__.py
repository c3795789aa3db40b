"""Arithmetic on measured numbers: statistics, ratios with their intervals, units as text.

Nothing here knows what was measured.
"""
