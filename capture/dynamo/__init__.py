"""Tracing one frame with torch._dynamo: the call, the patches that it needs, what it reports, its settings while it runs."""
