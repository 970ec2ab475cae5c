"""Datasets, read without torch.

files                          folders, downloads, and compact copies as memory-mapped arrays
cifar10, celeba, shakespeare   one dataset each, from its official files or LEAF's
samples                        inputs and targets by row number
partition                      the distribution of samples over clients, and a picture of it
"""
