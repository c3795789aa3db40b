"""Pure mathematics: no I/O, no clock, no TensorFlow."""
