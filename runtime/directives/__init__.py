"""Directives of users: disable, allow in graph, marks of dynamic dimensions."""
