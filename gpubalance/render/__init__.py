"""A result as text: for the terminal, Markdown, CSV, an HTML report, and TensorBoard's events.

Pure: it takes records and returns text or bytes. Printing and writing files is for cli/.
"""
