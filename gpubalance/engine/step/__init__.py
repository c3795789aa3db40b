"""The step: what every replica does with its part of a global batch, measured or trained.

step.py has the step, and functions.py traces it. Meanwhile weighing.py and gradients.py change
Keras, so that it computes a part of a batch; state.py, logs.py and sums.py make the whole of the
parts. How they do is found beforehand by parity.py: traced_step.py and runs.py run the step whole
and in parts, and rounding.py finds how far rounding moves it.
"""
