"""What the code generators of all targets share."""
