"""What survives a command: the journals that --resume continues from, and results for later ones.

The format of a finished result is in results/; the folders are in system/.
"""
