"""Where bytes lie: folders, and whose they are."""
