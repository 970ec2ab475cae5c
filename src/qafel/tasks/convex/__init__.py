"""Convex problems, whose optimum is known:

kernels      compiled loops of gradient descent that the tasks share
mushrooms    the paper's logistic regression; its data ships with the package. LIBSVM's text format
synthetic    quadratic and logistic problems of any size
"""
