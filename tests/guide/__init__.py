"""Checks that the guide and the README say what the program does."""
