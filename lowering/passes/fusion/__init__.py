"""Passes that fuse loops and attach epilogues, by what they save in memory traffic."""
