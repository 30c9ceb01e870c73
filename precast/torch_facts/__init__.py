"""Facts about torch that precast relies on: what needs each, what is done where it does not hold, and whether it holds."""
