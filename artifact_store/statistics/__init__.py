"""Counts of calls, misses and compiles: kept in each process, written beside the store, added up over processes and machines."""
