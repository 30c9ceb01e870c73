"""The adapters of torch._dynamo: tracing one frame, what it reports, and its settings while it runs."""
