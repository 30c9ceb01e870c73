"""The source of a Triton kernel."""
