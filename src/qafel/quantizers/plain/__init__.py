"""The kernels in plain NumPy, for a device without Numba: same names, same arguments, same bits.

Each stands for the module of its name in `quantizers/kernels`, which says how the formats are meant and takes these
where Numba is not installed; those of `trellis` are in trellis/plain.py. They work on many coordinates at a time, a
piece of some ten thousand after the other, so that a device needs little memory beside the vector. A product or sum of
float32 is rounded once, in the same order as in the compiled kernels.

shared    a keyed counter hash for every coordinate, packing, the end of every decoder
levels    a step per bucket or tensor and a code per coordinate: QSGD, sign, dither, affine
blocks    rotated blocks to the best levels for a Gaussian and back
sparse    selection and index coding for top-k and rand-k
"""
