"""The programs for PyTorch that gpubalance has to copy: gpubalance/examples.

Only processes of their own import torch, as it and TensorFlow in one process may disturb each other.
"""
