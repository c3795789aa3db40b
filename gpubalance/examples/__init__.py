"""Programs to copy for those who train with PyTorch. They need torch, and nothing of gpubalance.

The chapter pytorch leads through them. Only their folder's path is used here.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
