"""Pure mathematics: which split is best, which batch sizes to try, what the parts of a step are.

No I/O, no clock, no TensorFlow. Measurements come in as numbers.
"""
