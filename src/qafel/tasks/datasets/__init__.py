"""Datasets, read without torch. In the order in which data flows:

files          where they lie, how they are downloaded, and their compact copies as memory-mapped arrays
cifar10, celeba, shakespeare    one dataset each: its official files, and LEAF's
samples        inputs and targets by row number, as every dataset gives them
partition      which client holds which samples, and a picture of that
"""
