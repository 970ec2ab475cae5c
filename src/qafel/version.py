"""The version, in its own module so that every layer can import it."""

__version__ = "0.3.0"
