"""Cuts a model's graph over unlike devices, orders their work, and finds how long a step takes.

Pure mathematics, like all of planning/: a graph and the times of its blocks come in; segments,
orders and times go out.
"""
