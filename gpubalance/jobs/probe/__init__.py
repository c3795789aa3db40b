"""`probe`: what each device can do alone, and how large a batch it takes.

Which batch sizes are tried is decided in planning/; here they are measured, each device in workers of its own.
"""
