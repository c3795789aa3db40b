"""Starts worker processes and parties of them, asks them, enforces deadlines, and ends them.

A job holds a `Party`, never a process. The parent imports no TensorFlow; what a worker does with
its devices is in engine/.
"""
