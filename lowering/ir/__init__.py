"""The loop IR: nodes, index arithmetic, sizes, scalars, and their text."""
