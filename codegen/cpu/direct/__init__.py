"""Convolutions of our own on a CPU that read images where they lie."""
