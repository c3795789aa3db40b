"""The training interface: trains a Keras model with a split, by Keras' own fit.

It depends on Keras' internals, which it checks for. The step that gpubalance measures is in
engine/, not here.
"""
