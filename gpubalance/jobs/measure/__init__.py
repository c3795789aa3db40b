"""How a joint measurement is made: its windows of timings, what the parts of a step are, sensors beside them.

Which split is measured, and what follows from it, is for the jobs that use this (run, balance, probe).
"""
