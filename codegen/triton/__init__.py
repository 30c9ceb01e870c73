"""Triton kernels: their source, and the images compiled from it."""
