"""Passes over the captured graph: what becomes an input, an output, an alias, a launch."""
