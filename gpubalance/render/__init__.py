"""A result as text: for the terminal, as Markdown and CSV, as an HTML report, as TensorBoard's
events.

Pure: it takes records and returns text or bytes. Printing and writing files is for cli/.
"""
