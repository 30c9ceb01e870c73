"""Passes that simplify: algebra, constants, copies, common subexpressions, patterns of several operators."""
