"""The step: what every replica does with its part of a global batch, measured or trained."""
