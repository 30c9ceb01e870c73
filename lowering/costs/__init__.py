"""What steps cost: their bytes and operations, what chips reach, and the time that is to be expected of the one on the other."""
