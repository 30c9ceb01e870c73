"""A third family of targets, made of this folder and one row (`row.py`): programs for `toy:interpreter` are run by the scheduler's oracle.

It computes on tensors in host memory. Its library is a shared object like any other, whose one step calls an operator back in Python, and
that operator interprets the scheduled program, which the library holds as text.
"""
