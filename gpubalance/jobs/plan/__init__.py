"""`plan`: the best split by a probe, and what is known of devices while a balance measures more.

planning/ has the arithmetic of splits.
"""
