"""Images of Triton kernels, compiled by a pool of workers."""
