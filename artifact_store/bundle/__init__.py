"""Bundles: artifacts, records and their signatures in one relocatable file, the same bytes for the same content."""
