"""What operators do to a store: verify, repair, prune, count, collect what nothing names."""
