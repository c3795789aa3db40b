"""Pure mathematics: which split is best, which batch sizes to try, what the parts of a step are.

No I/O, no clock, no TensorFlow. What was measured goes in as numbers.
"""
