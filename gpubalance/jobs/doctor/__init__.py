"""`doctor`: checks the machine, and says what mends it.

Known causes and remedies are in remedies/; what NVML tells is read in devices/.
"""
