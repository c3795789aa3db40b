"""What the user asks for: requests, settings, devices, profiles, and the words of flags.

Only records, checked where they are made. Measured values are in results/.
"""
