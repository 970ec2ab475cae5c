"""Compiled kernels: what runs over every coordinate, and nothing else.

They are module-level Numba functions, cached on disk, free of the GIL and of fast-math, and they work on ranges of
independent spans, so that any number of threads gives the same bytes.

    numeric   the keyed counter hash and the maximum over bit patterns, shared by all
    packing   codes of 1 to 8 bits to bytes and back
    levels    QSGD and sign: codes times a step per bucket
    dither    subtractive dither
    rotation  randomised Hadamard blocks with Gaussian levels
    sparse    selection and index coding for top-k and rand-k
    affine    min-max per tensor

Numba's cache watches only the file that a kernel stands in. After changing `numeric` or `packing`, delete the `*.nbi`
files under `__pycache__`.
"""
