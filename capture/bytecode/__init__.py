"""The rewritten bytecode of a frame: its record, and what it needs to run in another process."""
