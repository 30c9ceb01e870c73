"""CUDA graphs: capture, replay, and the memory of their outputs."""
