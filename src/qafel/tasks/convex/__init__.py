"""Convex problems with a known optimum.

kernels     compiled loops of gradient descent, loaded on first use together with Numba
steps       a client's local steps, and the same loops in NumPy, for installations without Numba
mushrooms   the paper's logistic regression with its data; LIBSVM's text format
synthetic   quadratic and logistic problems of any size
"""

from typing import TYPE_CHECKING

from qafel.lazy import lazily
from qafel.quantizers.kernels import are_compiled

if TYPE_CHECKING:
    from qafel.tasks.convex import kernels as kernels

__getattr__, __dir__ = lazily(__name__, {"kernels": f"{__name__}.kernels" if are_compiled() else f"{__name__}.steps"})
