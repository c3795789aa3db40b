"""What survives a command: the journals that --resume continues from, and the results that later
commands use.

The format of a finished result is in results/; the folders are in system/.
"""
