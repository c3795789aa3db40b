"""`independent`: a model of its own on each device, in turns alone and all at once.

Each device has a worker, all of one party; what they measure at once counts only while every one of them measures.
"""
