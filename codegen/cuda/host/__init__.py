"""The host program of a CUDA graph: what launches its kernels and calls its libraries."""
