"""`probe`: measures what each device can do alone, and how large a batch it holds.

planning/ decides which batch sizes are tried; here they are measured, each device in workers of its
own.
"""
