"""`balance`: probe, plan, run, correct the split from what was measured, prove it.

planning/ has the arithmetic of splits, jobs/measure/ measures one split.
"""
