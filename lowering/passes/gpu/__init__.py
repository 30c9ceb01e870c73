"""Passes that only GPU targets want."""
