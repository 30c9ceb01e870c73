"""Fingerprints of code, classes and constants: an edit of what was traced is a miss."""
