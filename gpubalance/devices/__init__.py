"""Finds the devices, GPUs through NVML or simulated ones from a profile, and reads their state.

What a device can do is measured in jobs/; the records of a device are in settings/.
"""
