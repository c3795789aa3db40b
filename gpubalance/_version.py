"""The version, for what must not import the package's door."""

__version__ = "0.1.0"
