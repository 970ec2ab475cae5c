"""The paper's networks in compiled loops. They compute the same gradients as PyTorch, faster.

winograd   convolutions of 32 channels
cnn        the convolutional network: its other layers, and its gradient
lstm       the LSTM: products of matrices from tiles that stay in registers, and its gradient
"""

from pathlib import Path

from qafel.compiled import forget_stale_kernels

forget_stale_kernels(Path(__file__).parent)
