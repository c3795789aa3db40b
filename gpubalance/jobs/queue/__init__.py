"""`queue`: runs commands, one at a time on each device, each where it ends soonest.

When a free device starts the next command is decided by planning/queue.py.
"""
