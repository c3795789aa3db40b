"""The records of a result, as they stand in its file. The names are a contract: see the README.

schema_version 1: the first.
"""
