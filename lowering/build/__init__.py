"""From ATen nodes to unscheduled loops: the builder, lazy tensors, and the registry that operators enter themselves in."""
