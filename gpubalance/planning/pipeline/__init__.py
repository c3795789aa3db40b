"""Where a model's graph is cut over unlike devices, in which order they work, and how long a step takes.

Pure mathematics, as all of planning/: a graph and what its blocks take in, segments, orders and times out.
"""
