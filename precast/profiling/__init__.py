"""Where a program's time goes: marks that compiled graphs leave, what a machine can do at most, and the two together."""
