"""What survives a command: the journals that --resume goes on from, and the probes that plans start from.

The format of a finished result is not here but in results/; where files lie is in system/.
"""
