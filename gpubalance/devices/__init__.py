"""Which devices are here: NVIDIA's GPUs through NVML, or simulated ones from a profile, and their state.

What a device can do is measured in jobs/; the records of a device are in settings/.
"""
