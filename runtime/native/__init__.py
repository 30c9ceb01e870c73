"""The native runtime: building, finding and loading it, and torch's memory layout that it reads."""
