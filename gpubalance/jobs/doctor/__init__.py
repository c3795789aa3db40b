"""`doctor`: checks the machine, and says how to fix what is wrong.

Known causes and remedies are in remedies/; NVML is read in devices/.
"""
