"""The steps of `scripts/bench gpu`, which find what only a machine with GPUs can show."""
