"""Results as a page to look at: one self-contained HTML file with charts, and its tables as
Markdown and CSV.
"""
