"""Quantized asynchronous federated learning with a shared hidden state."""

__version__ = "0.1.0"
