"""Measurements for the guide, each a ratio of two things measured in turns in one run.
`scripts/bench NAME`.
"""
