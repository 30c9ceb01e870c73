"""What the rooms of capture share: captured frames, the sources of values, symbolic shapes."""
