"""Endpoints that exist: object stores, HTTP caches, redis and shared folders, each with the same few verbs."""
