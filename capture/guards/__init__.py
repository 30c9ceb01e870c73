"""Dynamo's guards as portable guards, and guards on what Dynamo leaves unguarded."""
