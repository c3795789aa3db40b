"""The records of results, as they stand in files: frozen, validated, with schema_version (1: the first).

The names are a contract. What is computed from them for people to read is in render/.
"""
