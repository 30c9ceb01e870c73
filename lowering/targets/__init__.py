"""The passes of each family of targets, in order: one flat list a family."""
