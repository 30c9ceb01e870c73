"""The CUDA backend: library selection, tuning, its host program."""
