"""Passes that simplify: algebra, constants, copies, common subexpressions, attention and other patterns of several operators."""
