"""Paths to objects that guards look at, from a call's arguments and from modules."""
