"""The memory plan: which buffers share which bytes of the workspace."""
