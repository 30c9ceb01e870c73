"""Commands about the local store: ls, show, prune, verify, stats, dir and clean."""
