"""What each command does, built on the packages below.

A job does not import TensorFlow: it drives worker processes. It prints nothing: it emits events and
returns a record.
"""
