"""`independent`: a model of its own on each device, alone and all at once, interleaved.

Each device has a worker in one worker group; what they measure at once counts only while all of
them are measuring.
"""
