"""The checker that runs after each pass in tests, and an interpreter of programs."""
