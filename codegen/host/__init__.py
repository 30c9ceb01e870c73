"""The host program: C++ that allocates, launches kernels and calls library operators in order."""
