"""`independent`: a model of its own on each device, in turns alone and all at once.

Each device has a worker in one worker group; what they measure at once counts only while all of
them are measuring.
"""
