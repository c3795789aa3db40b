"""The operating system's side: where files are kept, locks, deadlines, TOML files, version numbers.

It knows nothing of devices, splits or results.
"""
