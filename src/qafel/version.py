"""The version, apart from all else so that every layer may name it."""

__version__ = "0.2.0"
