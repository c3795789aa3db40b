"""The work of `scripts/bench gpu`: tests/support/gpu/steps.py names its steps.

Each step is a module here with `figures(place)`, which yields its findings.
"""
