"""The chapters that `gpubalance guide` shows, and what finds them.

A chapter is a Markdown file here: its name is the command's argument, its first line the title, and
its first paragraph, one line, what the list says of it. What one reads before anything else belongs
in README.md instead.
"""
