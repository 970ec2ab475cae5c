"""Compiled backward pass of a network's first block: to the weights of a 3×3 convolution with padding 2.

Nobody asks for the gradient of the images, so that of the convolution's output is needed for the weights only: two
planes of it are made in the nearest cache, multiplied with the image under each of the nine taps, and never written to
memory. Image and planes are laid out in rows of `stride` = width + 2 numbers, so that a tap is a shift of the whole
plane and the products run through one long loop; the two numbers between a plane's rows are zero.
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit, uintp

from qafel.tasks.norm_pool_kernels import KERNEL, sums

PAD = 2


@njit(**KERNEL)
def _pad(image, padded):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy the image into the middle of `padded`, whose border stays zero."""
    channels, height, width = image.shape
    for channel in range(channels):
        for y in range(height):
            start = (y + PAD) * (width + 2 * PAD) + PAD
            for x in range(width):
                padded[channel, start + x] = image[channel, y, x]


@njit(**KERNEL)
def _spread(plane, width, stride, places, live, factor, slope, level, to):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One plane's gradient: a multiple of x plus a constant, and something more at the chosen places."""
    for row in range(plane.size // width):
        start, to_start = uintp(row * width), uintp(row * stride)
        for signed in range(width):
            j = uintp(signed)
            to[to_start + j] = plane[start + j] * slope + level
    for i in range(live.size):
        to[uintp(places[i])] += factor * live[i]


@njit(**KERNEL)
def _correlate(padded, offset, first, second, grad_first, grad_second):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the products of two planes with the image under three taps in a row."""
    a = b = c = d = e = f = float32(0)
    left, middle, right = uintp(offset), uintp(offset + 1), uintp(offset + 2)
    for signed in range(first.size):
        j = uintp(signed)
        p, q, r = padded[j + left], padded[j + middle], padded[j + right]
        g, h = first[j], second[j]
        a += g * p
        b += g * q
        c += g * r
        d += h * p
        e += h * q
        f += h * r
    grad_first[0] += a
    grad_first[1] += b
    grad_first[2] += c
    grad_second[0] += d
    grad_second[1] += e
    grad_second[2] += f


@njit(**KERNEL)
def backward(images, grad, x, width, gain, out, best, places, mean, scale, grad_weight, grad_gain, grad_bias):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add to the gradients of the convolution's weights and of the norm.

    images is (batch, channels, side, side); x, out and the others are planes as in `norm_pool_kernels`, an even number
    for each image, with places for `stride`; grad_weight is (planes of an image, channels, 3, 3). A number added to all
    of a plane is taken away by the norm, so the gradient of the convolution's bias is zero.
    """
    planes, size = x.shape
    height, stride = size // width, width + PAD
    padded = np.zeros((images.shape[1], (height + PAD) * stride), np.float32)
    pair = np.zeros((2, height * stride - PAD), np.float32)
    live = np.empty(grad.shape[1], np.float32)
    for p in range(0, planes, 2):
        c = p % gain.size
        if c == 0:
            _pad(images[p // gain.size], padded)
        for k in range(2):
            q, m, r, g = p + k, mean[p + k], scale[p + k], gain[c + k]
            sum_g, sum_gx = sums(grad[q], out[q], best[q], float32(-1) if g < 0 else float32(1), m, r, live)
            grad_bias[c + k] += sum_g
            grad_gain[c + k] += sum_gx
            slope = -g * r * r * sum_gx / float32(size)
            level = -g * r * sum_g / float32(size) - slope * m
            _spread(x[q], width, stride, places[q], live, g * r, slope, level, pair[k])
        for channel in range(images.shape[1]):
            for row in range(3):
                to_first, to_second = grad_weight[c, channel, row], grad_weight[c + 1, channel, row]
                _correlate(padded[channel], row * stride, pair[0], pair[1], to_first, to_second)
