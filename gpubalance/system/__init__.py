"""The operating system's side: where files lie, locks, deadlines, TOML files, version numbers.

Nothing here knows of devices, splits or results.
"""
