"""`compare`: results from files, side by side, with what differs and what is significant.

The statistics are in numbers/, the table's text in render/.
"""
