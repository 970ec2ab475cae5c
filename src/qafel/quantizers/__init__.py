"""Codecs: a vector to few bytes and back, each with its theory."""
