"""The CPU's backend: library selection, tuning, its host program and kernels written by hand."""
