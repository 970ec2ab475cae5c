"""The paper's networks in compiled loops. They compute the same gradients as PyTorch, faster.

winograd   convolutions of 32 channels
blocks     the first convolution, group norm, ReLU and pooling
cnn        the gradient of the convolutional network
products   products of matrices from tiles that stay in registers
lstm       the gradient of the LSTM
"""

from pathlib import Path

from qafel.compiled import forget_stale_kernels

forget_stale_kernels(Path(__file__).parent)
