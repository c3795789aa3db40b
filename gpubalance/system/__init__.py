"""The operating system's side: files, locks, deadlines, signals, versions.

It knows nothing of devices, splits or results.
"""
