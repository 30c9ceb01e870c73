"""Optimisers of `torch.optim`: one compiled update for all tensors of a parameter group."""
