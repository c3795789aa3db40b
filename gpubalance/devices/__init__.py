"""What is here: NVIDIA's GPUs through NVML, or simulated ones from a profile."""
