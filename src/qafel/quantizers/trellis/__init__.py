"""Trellis-coded quantization of rotated vectors at any rate.

tables    code tables, and how a vector is cut
codec     the quantizer: rate control, and the payload
plain     its kernels in NumPy, for a device without Numba and for the tests

The compiled kernels are quantizers/kernels/windows.py and what it uses. docs/decisions/quantizers-trellis.md says why.
"""

from qafel.quantizers.trellis.codec import Scale, Trellis

__all__ = ["Scale", "Trellis"]
