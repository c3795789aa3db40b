"""What the user asks for: requests, settings, devices and profiles, and the words that flags may
use.

Only records, checked where they are made. Measured values are in results/.
"""
