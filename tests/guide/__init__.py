"""The guide and the README say what the program does."""
