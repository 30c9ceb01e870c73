"""Loaded graphs: from stored records to something that can be called."""
