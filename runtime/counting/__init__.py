"""What is counted and recorded of programs in this process: calls, misses, compiles, and the shapes of calls."""
