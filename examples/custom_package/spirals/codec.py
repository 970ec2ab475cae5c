"""A quantizer with four bits per coordinate: a sign and a power of two."""

import numpy as np

HALVINGS = np.array([0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1])
LEVELS = np.concatenate([HALVINGS, -HALVINGS]).astype(np.float32)


class PowersOfTwo:
    """Round at random to the level below or above, without bias."""

    def encode(self, vector, stream):
        scale = np.abs(vector).max()
        size = np.abs(vector) / (scale or 1)
        above = np.searchsorted(HALVINGS, size).clip(1)
        low, high = HALVINGS[above - 1], HALVINGS[above]
        up = stream.generator().random(vector.size) < (size - low) / (high - low)
        codes = (above - 1 + up + 8 * (vector < 0)).astype(np.uint8)
        pairs = np.append(codes, np.zeros(codes.size % 2, np.uint8)).reshape(-1, 2)
        return np.float32(scale).tobytes() + (pairs[:, 0] | pairs[:, 1] << 4).tobytes()

    def decode(self, payload, size):
        scale = np.frombuffer(payload, np.float32, 1)
        packed = np.frombuffer(payload, np.uint8, (size + 1) // 2, offset=4)
        codes = np.stack([packed & 15, packed >> 4], axis=1).ravel()[:size]
        return scale * LEVELS[codes]
