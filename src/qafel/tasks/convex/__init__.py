"""Convex problems, whose optimum is known:

kernels      compiled loops of gradient descent; they load when they are first used, and Numba with them
plain        the same in NumPy, where Numba is not installed
steps        a client's local steps with these loops
mushrooms    the paper's logistic regression; its data ships with the package. LIBSVM's text format
synthetic    quadratic and logistic problems of any size
"""

from typing import TYPE_CHECKING

from qafel.lazy import lazily
from qafel.quantizers.kernels import are_compiled

if TYPE_CHECKING:
    from qafel.tasks.convex import kernels as kernels

__getattr__, __dir__ = lazily(__name__, {"kernels": f"{__name__}.kernels" if are_compiled() else f"{__name__}.plain"})
