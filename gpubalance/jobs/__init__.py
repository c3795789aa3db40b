"""What each command does, built on the packages below; run, report, launch and devices are one file
each.

A job does not import TensorFlow: it drives worker processes. It prints nothing: it emits events and
returns a record.
"""
