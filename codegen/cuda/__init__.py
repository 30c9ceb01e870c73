"""The CUDA backend: library selection, tuning, and the host program, which loads and launches the kernels' images."""
