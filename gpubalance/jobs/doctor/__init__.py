"""`doctor`: checks the machine, and says how to fix it.

Known causes and remedies are in remedies/; what NVML tells is read in devices/.
"""
