"""The remotes behind a local store: misses look into them, and what is put goes to them, in threads that hold no call up."""
