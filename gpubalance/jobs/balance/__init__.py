"""`balance`: probe, plan, run, correct the split from what was measured, prove it.

The arithmetic of splits is in planning/, the measuring of one split in jobs/measure/.
"""
