"""What the user asks for: requests, settings, devices and profiles, and the words that flags may use.

Records only, checked where they are made. What came out of a measurement is in results/.
"""
