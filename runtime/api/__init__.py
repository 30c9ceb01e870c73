"""`compile`, `load`, `explain` and `precompile` as the facade exports them."""
