"""Builds on machines that dask or ray look after: the client's loop, one module an engine, and what a worker does."""
