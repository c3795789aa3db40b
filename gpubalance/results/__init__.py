"""The results as they are written to files: frozen, validated records with a schema_version of 1.

Their field names are a contract with users. render/ turns them into text.
"""
