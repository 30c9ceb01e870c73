"""Training: calls that record gradients, optimisers, and loops that people write."""
